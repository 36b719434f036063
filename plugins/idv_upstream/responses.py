"""How an upstream's answer is to be read: the section ``response`` of its options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from idv_upstream.expressions import (
    ExpressionText,
    ListText,
    ends_in_an_element,
    gives_all,
    picks_an_element,
)
from idv_upstream.fields import FieldOptions, FieldSource
from tornado_idv import ByNickname, Query


class ResponseOptions(BaseModel):
    """Where in an answer the user is."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    found_when: ExpressionText | None = None
    """An expression on the whole answer; if what it gives is false, empty or null, the user is
    not known there."""
    select: ListText | None = None
    """An expression that gives the user's record, or a list of them; the whole answer unless
    set. An empty list means that the user is not known there."""
    pick: Literal["one", "first"] = "one"
    """Whether a list of more than one is an error (one), or its first is the user (first)."""
    plan: FieldSource
    """The plan."""
    card_number: FieldSource | None = None
    """The card number, as text of digits."""
    nickname: FieldSource | None = None
    """The nickname, with or without ``@``."""
    profile_url: FieldSource | None = None
    """The profile URL; without it, it follows from the nickname."""
    check_echo: bool = True
    """Whether the answer must hold what was asked for. Without it, any user is believed to be
    the one that was asked for."""
    not_known_when: ExpressionText | None = None
    """An expression that must hold for the body of an answer whose status says that the user is
    not known, lest a wrong address be taken for that."""
    media_type: Literal["json", "any"] = "json"
    """Whether an answer must be said to be JSON."""

    @model_validator(mode="after")
    def _has_what_is_needed(self) -> Self:
        needed = {"card_number": self.card_number, "nickname": self.nickname}
        missing = [name for name, source in needed.items() if source is None]
        if self.check_echo and missing:
            raise ValidationError.from_exception_data(
                "response",
                [InitErrorDetails(type="missing", loc=(name,), input=None) for name in missing],
            )
        if len(missing) > 1:
            raise ValueError("what is not asked for comes from the answer; write card_number")
        return self

    def tells_of(self, asked: type[Query]) -> bool:
        """Whether a query of this kind can be answered: what it asks for need not be told."""
        told = self.card_number if asked is ByNickname else self.nickname
        return self.check_echo or told is not None

    def warnings(self) -> Iterator[str]:
        """Describe what keeps an answer with several users from being noticed."""
        if self.pick == "first":
            return
        if self.select is not None and ends_in_an_element(self.select):
            yield (
                f"response.select ({self.select}) takes an element out of a list, so an answer "
                "with several users is read as one of them instead of being refused; select "
                "the list itself, or write pick: first if that is wanted"
            )
        if self.select is None or gives_all(self.select):
            yield from self._picking_fields()

    def _picking_fields(self) -> Iterator[str]:
        for name, source in (("card_number", self.card_number), ("nickname", self.nickname)):
            path = source.path if isinstance(source, FieldOptions) else source
            if path is not None and picks_an_element(path):
                yield (
                    f"response.{name} ({path}) takes an element out of a list, so an answer with "
                    "several users is read as one of them instead of being refused; write the "
                    "list into select and the rest into the field (instead of data[0].id, "
                    f"select: data and {name}: id), or write pick: first if that is wanted"
                )
