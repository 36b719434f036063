"""The mapping of a JSON document to a `User`. Errors contain no value of the document."""

import re
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any

from idv_upstream.response.options import ResponseOptions
from tornado_idv import Broken, ByCard, ByNickname, Query, Step, Unavailable, User
from tornado_idv.kit.mapping import ROOT, Expression, MappedField, is_falsy, json_type

_NICKNAME = re.compile("[!-~]+")
_CONDITIONS = ("unavailable_when", "broken_when", "complete_when", "found_when", "not_known_when")
_FIELDS = ("id", "plan", "card_number", "nickname", "profile_url")
_MAX_RESULTS = 5
"""Maximum number of steps for the evaluations of one expression on one response."""


class AnotherUser(Broken):
    """Raised if the user in a response is not the requested user."""


class _Recorded(Expression):
    """An expression that appends its evaluations to ``steps``."""

    def __init__(self, name: str, expression: Expression, steps: list[Step]) -> None:
        vars(self).update(vars(expression))
        self._name, self._plain, self._steps = name, expression, steps

    def evaluate(self, value: Any) -> Any:
        self._record(value)
        return self._plain.evaluate(value)

    def reads(self, value: Any) -> bool:
        reads = self._plain.reads(value)
        if not reads:  # no evaluation follows
            self._record(value)
        return reads

    def _record(self, value: Any) -> None:
        of_response = takewhile(lambda each: each.name != "response", reversed(self._steps))
        if sum(each.name == self._name for each in of_response) < _MAX_RESULTS:
            self._steps.append(self._plain.step(self._name, value))


class ResponseMapper:
    """Maps JSON documents to users, as the option ``response`` describes.

    With ``folds_nicknames``, the case of nicknames is ignored.
    """

    def __init__(self, options: ResponseOptions, *, folds_nicknames: bool = False) -> None:
        self._folds_nicknames = folds_nicknames
        self._options = options
        texts = options.model_dump(include={*_CONDITIONS, "select"}, exclude_none=True)
        self._expressions = {name: Expression(text) for name, text in texts.items()}
        select = self._expressions.get("select")
        if select is not None and select.node["type"] == "projection":
            select.node = select.node["children"][0]  # a projection would drop null
        self._fields = {name: MappedField(name, getattr(options, name)) for name in _FIELDS}
        read = [each.expression for each in self._fields.values()]
        read.append(self._expressions.get("not_known_when"))
        self._uses_root = any(ROOT in each.members for each in read if each is not None)

    def record_steps(self, steps: list[Step]) -> None:
        """From now on, append each evaluation of an expression to ``steps``."""
        for name, expression in self._expressions.items():
            self._expressions[name] = _Recorded(name, expression, steps)
        for field in self._fields.values():
            if field.expression is not None:
                field.expression = _Recorded(field.name, field.expression, steps)

    def user(self, query: Query, document: Any) -> User | None:
        """Return the user, or ``None`` for "not found". Raises `LookupFailed` in other cases."""
        record = self._record_of(query, document, echo=self._options.check_echo)
        if record is None:
            return None
        # Without check_echo, the requested value is taken as the value of the user.
        same = None if self._options.check_echo else query
        card_number = same.card_number if isinstance(same, ByCard) else self._card_number_of(record)
        nickname = same.nickname if isinstance(same, ByNickname) else self._nickname_of(record)
        if query.text not in (card_number, f"@{nickname}"):
            raise AnotherUser("response is for a user other than requested")
        url = self._fields["profile_url"].text(record)
        if url == "":
            raise self._fields["profile_url"].error("is empty")
        return User(self._fields["plan"].required(record), card_number, nickname, url)

    def id(self, query: Query, document: Any) -> str | None:
        """Return the id, or ``None`` for "not found". Raises `LookupFailed` in other cases."""
        record = self._record_of(query, document, echo=False)
        return None if record is None else self._fields["id"].required(record)

    def _record_of(self, query: Query, document: Any, *, echo: bool) -> Any:
        """Return the user's record, or ``None`` for "not found". Raises `LookupFailed`."""
        for name, kind in (("unavailable_when", Unavailable), ("broken_when", Broken)):
            if name in self._expressions and not self.is_false(name, document):
                raise kind(f"the response is an error ({name})")
        if self.is_false("complete_when", document):
            text = self._expressions["complete_when"].text
            raise Broken(
                f"complete_when ({text}) is false: the response is one page of several, or an error"
            )
        if not self.is_false("found_when", document):
            return self._record(document, query, echo=echo)
        found_when, select = self._expressions["found_when"], self._expressions.get("select")
        # Two expressions on the same members cannot contradict each other.
        if select is not None and any(
            path[: len(selected)] != selected
            for path in found_when.paths
            for selected in select.paths
        ):
            given: Any = None
            with suppress(Broken):
                given = select.evaluate(document)
            values = given.values() if type(given) is dict else given
            if type(given) in (dict, list) and any(values):
                text = f"({found_when.text}) is false, but select ({select.text}) gives a user"
                raise Broken(f"found_when {text}")
        return None

    def is_false(self, name: str, document: Any) -> bool:
        """Return true if a condition is configured and is false for the document."""
        condition = self._expressions.get(name)
        return condition is not None and is_falsy(condition.evaluate(document))

    def _records(self, document: Any, query: Query) -> list[Any]:
        """Return the records that ``select`` gives. A value that is not a list is one record."""
        select = self._expressions.get("select")
        given = document if select is None else select.evaluate(document)
        if select is None or type(given) is not list:
            return [self._with_root(given, document)]
        if not given and "found_when" in self._expressions:
            text = self._expressions["found_when"].text
            raise Broken(f"found_when ({text}) is true, but select ({select.text}) gives no user")
        records = [self._with_root(each, document) for each in given]
        return self._requested(records, query) if self._options.match == "echo" else records

    def _with_root(self, record: Any, document: Any) -> Any:
        is_wanted = self._uses_root and type(record) is dict
        return {**record, ROOT: document} if is_wanted else record

    def _record(self, document: Any, query: Query, *, echo: bool) -> Any:
        """Return the record of the user, or ``None`` if there is no record.

        If ``not_known_when`` is true for a record, the record is ignored. With ``echo``, records of
        other users are never ignored, because they show that the response is wrong.
        """
        given = self._records(document, query)
        known = (each for each in given if not self._is_disabled(each, query, echo=echo))
        records = list(islice(known, 1 if self._options.pick == "first" else None))
        if not records:
            return None
        select, record = self._expressions.get("select"), records[0]
        if select is not None and len(records) > 1:
            raise Broken(f"more than one user for one query ({select.text})")
        if type(record) is dict:
            return record
        if select is not None:
            raise Broken(f"select ({select.text}) gives {json_type(record)}, not a record")
        hint = "; write select for the list of records" if type(record) is list else ""
        raise Broken(f"the response is {json_type(record)}, not a record{hint}")

    def _is_disabled(self, record: Any, query: Query, *, echo: bool) -> bool:
        """Return whether `_record` ignores a record because of ``not_known_when``."""
        condition = self._expressions.get("not_known_when")
        if condition is None or not condition.reads(record) or is_falsy(condition.evaluate(record)):
            return False
        return not echo or self._is_requested(record, query)

    def _requested(self, records: list[Any], query: Query) -> list[Any]:
        requested = [each for each in records if self._is_requested(each, query)]
        if requested:
            return requested
        if isinstance(query, ByCard):
            if (query.card_number.lstrip("0") or "0") in map(self._card_number_of, records):
                raise Broken("response is for this card number without its leading zeros")
        elif query.nickname.lower() in {self._nickname_of(each).lower() for each in records}:
            raise Broken(
                "response is for a nickname in another case: see identifiers.nickname_case"
            )
        return []

    def _is_requested(self, record: Any, query: Query) -> bool:
        if isinstance(query, ByCard):
            return self._card_number_of(record) == query.card_number
        return self._nickname_of(record) == query.nickname

    def _card_number_of(self, record: Any) -> str:
        field = self._fields["card_number"]
        card_number = field.required(record)
        if not (card_number.isascii() and card_number.isdigit()):
            raise field.error("contains characters other than digits")
        return card_number

    def _nickname_of(self, record: Any) -> str:
        field = self._fields["nickname"]
        nickname = field.required(record).removeprefix("@")
        if not _NICKNAME.fullmatch(nickname):
            raise field.error("is empty, or contains characters that are not allowed in a nickname")
        return nickname.lower() if self._folds_nicknames else nickname
