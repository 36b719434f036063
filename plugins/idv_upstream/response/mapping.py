"""Maps a JSON document of the upstream to a `User`.

It knows nothing of requests, and no error raised here holds a value of the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
_STEPS = ("unavailable_when", "broken_when", "complete_when", "found_when", "select")
"""The expressions on a whole response, in the order in which they are evaluated."""
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
        self._picks_first = options.pick == "first"
        self._check_echo = options.check_echo
        self._matches_echo = options.match == "echo"
        texts = {name: getattr(options, name) for name in (*_STEPS, "error", "not_known_when")}
        self._expressions = {
            name: Expression(text) for name, text in texts.items() if text is not None
        }
        self._plan = MappedField("plan", options.plan)
        self._card_number = MappedField("card_number", options.card_number)
        self._nickname = MappedField("nickname", options.nickname)
        self._profile_url = MappedField("profile_url", options.profile_url)
        self._id = MappedField("id", options.id)
        fields = self._id, self._plan, self._card_number, self._nickname, self._profile_url
        self._uses_root = any(
            ROOT in each.expression.members for each in fields if each.expression is not None
        )

    @property
    def reads_not_known(self) -> bool:
        """Return whether the body of a response whose status says "not known" must say so too."""
        return "not_known_when" in self._expressions

    def is_not_known(self, document: Any) -> bool:
        """Return whether the body of such a response says so; raises `Broken` if it is unclear."""
        return not self._is_false("not_known_when", document)

    def user(self, query: Query, document: Any) -> User | None:
        """Return the user in ``document``; ``None`` if it says that the user is not known.

        Raises `Broken`, with what is wrong and where, unless it is certainly one or the other.
        """
        record = self._record_of(query, document)
        if record is None:
            return None
        if isinstance(query, ByCard) and not self._check_echo:
            card_number = query.card_number
        else:
            card_number = self._card_number_of(record)
        if isinstance(query, ByNickname) and not self._check_echo:
            nickname = query.nickname
        else:
            nickname = self._nickname_of(record)
        if query.text not in (card_number, f"@{nickname}"):
            raise Broken("response is for another user than requested")
        return User(self._plan.required(record), card_number, nickname, self._url_of(record))

    def id(self, query: Query, document: Any) -> str | None:
        """Return the id of the user in ``document``, in the same way as `user`."""
        record = self._record_of(query, document)
        return None if record is None else self._id.required(record)

    def _record_of(self, query: Query, document: Any) -> Any:
        """Return the user's record, or ``None``; raises the error that a response says."""
        kinds: dict[str, type[LookupFailed]]
        kinds = {"unavailable_when": Unavailable, "broken_when": Broken}
        for name, kind in kinds.items():
            if name in self._expressions and not self._is_false(name, document):
                raise kind(f"the response says so ({name}){self._message(query, document)}")
        if self._is_false("complete_when", document):
            text = self._expressions["complete_when"].text
            raise Broken(f"the response is one page of several ({text} is false): request more")
        return None if self._is_false("found_when", document) else self._record(document, query)

    def _is_false(self, name: str, document: Any) -> bool:
        """Return whether there is such a condition, and it is false."""
        condition = self._expressions.get(name)
        return condition is not None and is_falsy(condition.evaluate(document))

    def explain(self, query: Query, document: Any) -> Iterator[Step]:
        """Yield the result of each expression."""
        echo = self._nickname if isinstance(query, ByNickname) else self._card_number
        for step in self._explained(_STEPS, document):
            yield step
            is_search = self._matches_echo and step.name == "select" and type(step.result) is list
            if is_search and echo.expression is not None:
                for record in step.result[:_MAX_CANDIDATES]:
                    yield _step("match", echo.expression, record)
        try:
            record = self._record(document, query)
        except Broken:
            return
        if record is None:
            return
        unread = None if self._check_echo else echo
        for field in (self._plan, self._card_number, self._nickname, self._profile_url):
            if field.expression is not None and field is not unread:
                yield _step(field.name, field.expression, record)

    def explain_not_known(self, document: Any) -> Iterator[Step]:
        """The same for the body of a response whose status says "not known"."""
        return self._explained(("not_known_when",), document)

    def _explained(self, names: Sequence[str], document: Any) -> Iterator[Step]:
        expressions = self._expressions
        return (_step(name, expressions[name], document) for name in names if name in expressions)

    def _message(self, query: Query, document: Any) -> str:
        """Return the message of an error, bounded, without the requested value and numbers."""
        value = next((step.result for step in self._explained(("error",), document)), None)
        if not isinstance(value, str):
            return ""
        masked = re.sub(re.escape(query.text.removeprefix("@")), "…", value, flags=re.IGNORECASE)
        return f": {printable(_NUMBER.sub('…', masked)[:_MAX_MESSAGE])}"

    def _record(self, document: Any, query: Query) -> Any:
        """Return the record of the one user; ``None`` for an empty list of users."""
        select = self._expressions.get("select")
        given = document if select is None else select.evaluate(document)
        if type(given) is list and self._matches_echo:
            given = self._requested([self._with_root(each, document) for each in given], query)
        if type(given) is list and select is not None:
            if not given:
                return None
            if len(given) > 1 and not self._picks_first:
                raise Broken(f"more than one user for one query ({select.text})")
            given = given[0]
        if type(given) is dict:
            return self._with_root(given, document)
        if select is not None:
            raise Broken(f"select ({select.text}) gives {json_type(given)}, not a record")
        hint = "; select says which list to look at" if type(given) is list else ""
        raise Broken(f"the response is {json_type(given)}, not a record{hint}")

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


def _step(name: str, expression: Expression, value: Any) -> Step:
    try:
        return Step(name, expression.text, expression.evaluate(value))
    except Broken as error:
        return Step(name, expression.text, None, error.reason)
