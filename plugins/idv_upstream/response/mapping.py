"""Maps a JSON document of the upstream to a `User`.

It knows nothing of requests, and no error raised here holds a value of the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from idv_upstream.response.options import ResponseOptions
from tornado_idv import (
    Broken,
    ByCard,
    ByNickname,
    LookupFailed,
    Query,
    Unavailable,
    User,
    printable,
)
from tornado_idv.mapping import ROOT, Expression, MappedField, is_falsy, json_type

_NICKNAME = re.compile("[!-~]+")
_NUMBER = re.compile("[0-9]{4,}")
_MAX_MESSAGE = 100
_MAX_CANDIDATES = 5
"""Records of a search for a part of the value that `upstream try` shows."""


class Step(NamedTuple):
    """The result of one expression, or why it has none."""

    name: str
    expression: str
    result: Any
    error: str = ""


class ResponseMapper:
    """Maps documents as the options say.

    With ``folds_nicknames`` a nickname in another case than requested is the same one.
    """

    def __init__(self, options: ResponseOptions, *, folds_nicknames: bool = False) -> None:
        self._folds_nicknames = folds_nicknames
        self._found_when = _expression(options.found_when)
        self._select = _expression(options.select)
        self._picks_first = options.pick == "first"
        self._not_known_when = _expression(options.not_known_when)
        self._check_echo = options.check_echo
        self._plan = MappedField("plan", options.plan)
        self._card_number = MappedField("card_number", options.card_number)
        self._nickname = MappedField("nickname", options.nickname)
        self._profile_url = MappedField("profile_url", options.profile_url)
        self._id = MappedField("id", options.id)
        fields = self._id, self._plan, self._card_number, self._nickname, self._profile_url
        self._uses_root = any(
            ROOT in each.expression.members for each in fields if each.expression is not None
        )
        self._matches_echo = options.match == "echo"
        self._complete_when = _expression(options.complete_when)
        self._error = _expression(options.error)
        conditions: list[tuple[str, str | None, type[LookupFailed]]] = [
            ("unavailable_when", options.unavailable_when, Unavailable),
            ("broken_when", options.broken_when, Broken),
        ]
        self._errors = [
            (name, Expression(text), kind) for name, text, kind in conditions if text is not None
        ]
        requested: Mapping[type[Query], MappedField]
        requested = {ByNickname: self._nickname, ByCard: self._card_number}
        self._unread = {} if options.check_echo else requested

    @property
    def reads_not_known(self) -> bool:
        """Return whether the body of a response whose status says "not known" must say so too."""
        return self._not_known_when is not None

    def is_not_known(self, document: Any) -> bool:
        """Return whether the body of such a response says so; raises `Broken` if it is unclear."""
        expression = self._not_known_when
        return expression is None or not is_falsy(expression.evaluate(document))

    def user(self, query: Query, document: Any) -> User | None:
        """Return the user in ``document``; ``None`` if it says that the user is not known.

        Raises `Broken`, with what is wrong and where, unless it is certainly one or the other.
        """
        record = self._record_of(query, document)
        if record is None:
            return None
        if isinstance(query, ByNickname):
            card_number, nickname = self._card_number_of(record), query.nickname
            if self._check_echo and self._nickname_of(record) != nickname:
                raise Broken("response is for another user than requested")
        else:
            card_number, nickname = query.card_number, self._nickname_of(record)
            if self._check_echo and self._card_number_of(record) != card_number:
                raise Broken("response is for another user than requested")
        return User(self._plan.required(record), card_number, nickname, self._url_of(record))

    def id(self, query: Query, document: Any) -> str | None:
        """Return the id of the user in ``document``, in the same way as `user`."""
        record = self._record_of(query, document)
        return None if record is None else self._id.required(record)

    def _record_of(self, query: Query, document: Any) -> Any:
        self._reject_error(query, document)
        if self._found_when is not None and is_falsy(self._found_when.evaluate(document)):
            return None
        return self._record(document, query)

    def explain(self, query: Query, document: Any) -> Iterator[Step]:
        """Yield the result of each expression."""
        for name, condition, _ in self._errors:
            yield _step(name, condition, document)
        if self._complete_when is not None:
            yield _step("complete_when", self._complete_when, document)
        if self._found_when is not None:
            yield _step("found_when", self._found_when, document)
        if self._select is not None:
            step = _step("select", self._select, document)
            yield step
            if self._matches_echo and type(step.result) is list:
                yield from self._explain_match(step.result, query)
        try:
            record = self._record(document, query)
        except Broken:
            return
        if record is None:
            return
        for field in (self._plan, self._card_number, self._nickname, self._profile_url):
            if field.expression is not None and field is not self._unread.get(type(query)):
                yield _step(field.name, field.expression, record)

    def _explain_match(self, records: list[Any], query: Query) -> Iterator[Step]:
        field = self._nickname if isinstance(query, ByNickname) else self._card_number
        if field.expression is not None:
            for record in records[:_MAX_CANDIDATES]:
                yield _step("match", field.expression, record)

    def explain_not_known(self, document: Any) -> Iterator[Step]:
        """The same for the body of a response whose status says "not known"."""
        if self._not_known_when is not None:
            yield _step("not_known_when", self._not_known_when, document)

    def _reject_error(self, query: Query, document: Any) -> None:
        """Raise the error that a response says, and `Broken` for one page of several."""
        for name, condition, kind in self._errors:
            if not is_falsy(condition.evaluate(document)):
                raise kind(f"the response says so ({name}){self._message(query, document)}")
        if self._complete_when is not None and is_falsy(self._complete_when.evaluate(document)):
            text = self._complete_when.text
            raise Broken(f"the response is one page of several ({text} is false): request more")

    def _message(self, query: Query, document: Any) -> str:
        """Return the message of an error, bounded, without the requested value and numbers."""
        try:
            value = self._error.evaluate(document) if self._error is not None else None
        except Broken:
            value = None
        if not isinstance(value, str):
            return ""
        masked = re.sub(re.escape(query.text.removeprefix("@")), "…", value, flags=re.IGNORECASE)
        return f": {printable(_NUMBER.sub('…', masked)[:_MAX_MESSAGE])}"

    def _record(self, document: Any, query: Query) -> Any:
        """Return the record of the one user; ``None`` for an empty list of users."""
        given = document if self._select is None else self._select.evaluate(document)
        if type(given) is list and self._matches_echo:
            given = self._requested([self._with_root(each, document) for each in given], query)
        if type(given) is list and self._select is not None:
            if not given:
                return None
            if len(given) > 1 and not self._picks_first:
                raise Broken(f"more than one user for one query ({self._select.text})")
            given = given[0]
        if type(given) is not dict:
            raise Broken(self._no_record(given))
        return self._with_root(given, document)

    def _with_root(self, record: Any, document: Any) -> Any:
        is_wanted = self._uses_root and type(record) is dict
        return {**record, ROOT: document} if is_wanted else record

    def _requested(self, records: list[Any], query: Query) -> list[Any]:
        """Return the records of a list that are of the requested user."""
        if isinstance(query, ByCard):
            return [each for each in records if self._card_number_of(each) == query.card_number]
        nicknames = [self._nickname_of(each) for each in records]
        if query.nickname not in nicknames and query.nickname.lower() in map(str.lower, nicknames):
            raise Broken(
                "response is for a nickname in another case: see identifiers.nickname_case"
            )
        named = zip(records, nicknames, strict=True)
        return [each for each, nickname in named if nickname == query.nickname]

    def _no_record(self, given: Any) -> str:
        if self._select is not None:
            return f"select ({self._select.text}) gives {json_type(given)}, not a record"
        hint = "; select says which list to look at" if type(given) is list else ""
        return f"the response is {json_type(given)}, not a record{hint}"

    def _card_number_of(self, record: Any) -> str:
        card_number = self._card_number.required(record)
        if not (card_number.isascii() and card_number.isdigit()):
            raise self._card_number.error("has other characters than digits")
        return card_number

    def _nickname_of(self, record: Any) -> str:
        nickname = self._nickname.required(record).removeprefix("@")
        if not _NICKNAME.fullmatch(nickname):
            raise self._nickname.error("is empty, or has characters that no nickname has")
        return nickname.lower() if self._folds_nicknames else nickname

    def _url_of(self, record: Any) -> str | None:
        url = self._profile_url.text(record)
        if url == "":
            raise self._profile_url.error("is empty")
        return url


def _expression(text: str | None) -> Expression | None:
    return None if text is None else Expression(text)


def _step(name: str, expression: Expression, value: Any) -> Step:
    try:
        return Step(name, expression.text, expression.evaluate(value))
    except Broken as error:
        return Step(name, expression.text, None, error.reason)
