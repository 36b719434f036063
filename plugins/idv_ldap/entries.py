"""The mapping of entries to users."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from idv_ldap.options import LdapOptions
from tornado_idv import Broken, Step, User
from tornado_idv.kit.mapping import Expression, MappedField, is_falsy


class EntryMapper:
    """Maps the attributes of an entry to a user.

    In expressions, an attribute with one value is a text, and an attribute with several values is a
    list of texts. A value that is not UTF-8 stays bytes. Only the function ``guid`` accepts bytes.
    """

    def __init__(self, options: LdapOptions) -> None:
        response = options.response
        names = ("nickname", "card_number", "plan", "profile_url")
        self.fields = {each: MappedField(each, getattr(response, each)) for each in names}
        text = response.not_known_when
        self.not_known_when = None if text is None else Expression(text)
        expressions = [each.expression for each in self.fields.values()] + [self.not_known_when]
        self.attributes = sorted({name for each in expressions if each for name in each.members})

    def user(self, attributes: dict[str, list[bytes]]) -> User | None:
        """Return the user, or ``None`` if ``not_known_when`` is true. Raises `Broken`."""
        record = self.record(attributes)
        if self.not_known_when is not None and self._is_not_known(self.not_known_when, record):
            return None
        fields = self.fields
        return User(
            fields["plan"].required(record),
            fields["card_number"].required(record),
            fields["nickname"].required(record).removeprefix("@"),
            fields["profile_url"].text(record),
        )

    def explain(self, attributes: dict[str, list[bytes]]) -> Iterator[Step]:
        """Yield steps with the attributes of an entry and the result of each expression."""
        record = self.record(attributes)
        yield Step("entry", record)
        if (condition := self.not_known_when) is not None:
            yield condition.step("not_known_when", record)
        for field in self.fields.values():
            if field.expression is not None:
                step = field.expression.step(field.name, record)
                with suppress(Broken):
                    if (text := field.text(record)) != step.result:
                        step = replace(step, note=f"mapped to {text}")
                yield step

    def _is_not_known(self, condition: Expression, record: dict[str, Any]) -> bool:
        """Return whether a condition is true for a record.

        The value of an attribute with several values is a list. Raises `Broken` if the condition is
        false for the list, but true for one of the values, because it expects a single value.
        """
        if not is_falsy(condition.evaluate(record)):
            return True
        for name in condition.members:
            values = record.get(name)
            for value in values if isinstance(values, list) else ():
                if not is_falsy(condition.evaluate({**record, name: value})):
                    advice = f"write contains(to_array({name}), …)"
                    raise Broken(f"not_known_when: {name} has several values; {advice}")
        return False

    def record(self, attributes: dict[str, list[bytes]]) -> dict[str, Any]:
        """Return the record for expressions: each attribute as a text, or a list of texts."""
        texts = {name: [*map(_text, values)] for name, values in attributes.items() if values}
        return {name: each[0] if len(each) == 1 else each for name, each in texts.items()}


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
