"""Maps a JSON document of the upstream to a `User`.

It knows nothing of requests, and no error raised here holds a value of the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from idv_upstream.response.options import ResponseOptions
from idv_upstream.response.trials import missing, reads_any, reads_within
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
_PRIVATE = re.compile(r"\S+@\S+\.\w+|(?=[\w+=~-]*[0-9])[\w+=~-]{20,}|[0-9]{4,}")
"""Mail addresses, tokens and card numbers in the message of an upstream."""
_MAX_MASKED = 1000
_STEPS = ("unavailable_when", "broken_when", "complete_when", "found_when", "select")
"""The expressions on a whole response, in the order in which they are evaluated."""
T = TypeVar("T")
_MAX_MESSAGE = 100
_MAX_CANDIDATES = 5
"""Records of a search for a part of the value that `upstream try` shows."""


class AnotherUser(Broken):
    """The user in a response is not the requested one."""


@dataclass(frozen=True)
class Step:
    """The result of one expression, or why it has none."""

    name: str
    expression: str
    result: Any
    error: str = ""
    missing: Sequence[str] = field(default=(), compare=False)
    """The members that are missing, where the result is null."""


class ResponseMapper:
    """Maps documents as the options say.

    With ``folds_nicknames`` a nickname in another case than requested is the same one.
    ``secrets`` are masked in messages.
    """

    def __init__(
        self,
        options: ResponseOptions,
        *,
        folds_nicknames: bool = False,
        secrets: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._folds_nicknames = folds_nicknames
        self._secrets = secrets
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
        read = [each.expression for each in fields] + [self._expressions.get("not_known_when")]
        self._uses_root = any(ROOT in each.members for each in read if each is not None)
        # A condition on the selected record is no second statement about it.
        select, found_when = map(self._expressions.get, ("select", "found_when"))
        self._states_twice = (
            select is not None and found_when is not None and not reads_within(found_when, select)
        )

    @property
    def reads_not_known(self) -> bool:
        """Return whether the body of a response whose status says "not known" must say so too."""
        return "not_known_when" in self._expressions

    @property
    def reads_errors(self) -> bool:
        """Return whether the message of an error is read, whatever its status."""
        return "error" in self._expressions

    def is_not_known(self, document: Any) -> bool:
        """Return whether the body of such a response says so; raises `Broken` if it is unclear."""
        return not self._is_false("not_known_when", document)

    def user(self, query: Query, document: Any) -> User | None:
        """Return the user in ``document``; ``None`` if it says that the user is not known.

        Raises `Broken`, with what is wrong and where, unless it is certainly one or the other.
        """
        return self._read(query, document, self._user_of, echo=self._check_echo)

    def id(self, query: Query, document: Any) -> str | None:
        """Return the id of the user in ``document``, in the same way as `user`."""
        return self._read(query, document, lambda _, record: self._id.required(record), echo=False)

    def _user_of(self, query: Query, record: Any) -> User:
        if isinstance(query, ByCard) and not self._check_echo:
            card_number = query.card_number
        else:
            card_number = self._card_number_of(record)
        if isinstance(query, ByNickname) and not self._check_echo:
            nickname = query.nickname
        else:
            nickname = self._nickname_of(record)
        if query.text not in (card_number, f"@{nickname}"):
            raise AnotherUser("response is for another user than requested")
        return User(self._plan.required(record), card_number, nickname, self._url_of(record))

    def _read(
        self, query: Query, document: Any, result_of: Callable[[Query, Any], T], *, echo: bool
    ) -> T | None:
        """Return the result of the user's record, or ``None``."""

        def result() -> T | None:
            record = self._record(document, query, echo=echo)
            return None if record is None else result_of(query, record)

        try:
            self._raise_error(document)
            if not self._is_false("found_when", document):
                return result()
            selected: Any = None
            if self._states_twice:
                with suppress(Broken):
                    given = self._expressions["select"].evaluate(document)
                    selected = given if type(given) is list and given else None
                    selected = result()
            if selected is not None:
                raise self._contradiction("is false, but", "gives a user")
        except LookupFailed as failure:
            failure.reason += self.message(query, document)
            raise
        return None

    def _raise_error(self, document: Any) -> None:
        """Raise the error that a response says."""
        kinds: dict[str, type[LookupFailed]]
        kinds = {"unavailable_when": Unavailable, "broken_when": Broken}
        for name, kind in kinds.items():
            if name in self._expressions and not self._is_false(name, document):
                raise kind(f"the response says so ({name})")
        if self._is_false("complete_when", document):
            text = self._expressions["complete_when"].text
            raise Broken(
                f"complete_when ({text}) is false: the response is one page of several, or an error"
            )

    def _contradiction(self, found: str, selected: str) -> Broken:
        found_when, select = self._expressions["found_when"], self._expressions["select"]
        return Broken(f"found_when ({found_when.text}) {found} select ({select.text}) {selected}")

    def _is_false(self, name: str, document: Any) -> bool:
        """Return whether there is such a condition, and it is false."""
        condition = self._expressions.get(name)
        return condition is not None and is_falsy(condition.evaluate(document))

    def explain(self, query: Query, document: Any) -> Iterator[Step]:
        """Yield the result of each expression that a lookup evaluates."""
        echo = self._nickname if isinstance(query, ByNickname) else self._card_number
        for step in self._explained(_STEPS, document):
            yield step
            is_error = step.name in ("unavailable_when", "broken_when") and not is_falsy(
                step.result
            )
            if is_error or step.error or (step.name == "complete_when" and is_falsy(step.result)):
                yield from self._explained(("error",), document)
                return
            is_search = self._matches_echo and step.name == "select" and type(step.result) is list
            if is_search and echo.expression is not None:
                for record in step.result[:_MAX_CANDIDATES]:
                    yield _step("match", echo.expression, record)
        try:
            records = self._records(document, query)
        except Broken:
            yield from self._explained(("error",), document)
            return
        for record in records[:_MAX_CANDIDATES]:
            condition = self._expressions.get("not_known_when")
            if condition is not None and reads_any(condition, record):
                yield _step("not_known_when", condition, record)
        with suppress(Broken):
            record = self._record(document, query, echo=self._check_echo)
            unread = None if self._check_echo else echo
            for each in (self._plan, self._card_number, self._nickname, self._profile_url):
                if record is not None and each.expression is not None and each is not unread:
                    yield _step(each.name, each.expression, record)

    def explain_status(self, document: Any, *, is_error: bool) -> Iterator[Step]:
        """The same for a response whose status says "not known", or is an error."""
        return self._explained(("error",) if is_error else ("not_known_when", "error"), document)

    def _explained(self, names: Sequence[str], document: Any) -> Iterator[Step]:
        expressions = self._expressions
        return (_step(name, expressions[name], document) for name in names if name in expressions)

    def message(self, query: Query, document: Any) -> str:
        """Return the message of an error, bounded, without the requested value and secrets."""
        value = next((step.result for step in self._explained(("error",), document)), None)
        if not isinstance(value, str):
            return ""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            value = value.replace(secret, "…")
        requested = re.escape(query.text.removeprefix("@"))
        masked = re.sub(requested, "…", value[:_MAX_MASKED], flags=re.IGNORECASE)
        return f": {printable(_PRIVATE.sub('…', masked)[:_MAX_MESSAGE])}"

    def _records(self, document: Any, query: Query) -> list[Any]:
        """Return what may be the user's record: what is selected, or those of a list."""
        select = self._expressions.get("select")
        given = document if select is None else select.evaluate(document)
        if type(given) is not list or select is None:
            return [self._with_root(given, document)]
        if not given and "found_when" in self._expressions:
            raise self._contradiction("is true, but", "gives no user")
        records = [self._with_root(each, document) for each in given]
        if self._matches_echo:
            records = self._requested(records, query)
        return records[:1] if self._picks_first else records

    def _record(self, document: Any, query: Query, *, echo: bool) -> Any:
        """Return the record of the one user; ``None`` for an empty list of users.

        With ``echo``, a record by which the user is not known must be of the requested one.
        """
        records = self._records(document, query)
        if "not_known_when" in self._expressions:
            records = [each for each in records if not self._is_disabled(each, query, echo=echo)]
        if not records:
            return None
        select, given = self._expressions.get("select"), records[0]
        if select is not None and len(records) > 1:
            raise Broken(f"more than one user for one query ({select.text})")
        if type(given) is dict:
            return given
        if select is not None:
            raise Broken(f"select ({select.text}) gives {json_type(given)}, not a record")
        hint = "; select says which list to look at" if type(given) is list else ""
        raise Broken(f"the response is {json_type(given)}, not a record{hint}")

    def _is_disabled(self, record: Any, query: Query, *, echo: bool) -> bool:
        """Return whether the record says so; one without any of the members does not."""
        condition = self._expressions["not_known_when"]
        if not reads_any(condition, record) or is_falsy(condition.evaluate(record)):
            return False
        if not echo:
            return True
        if isinstance(query, ByCard):
            return self._card_number_of(record) == query.card_number
        return self._nickname_of(record) == query.nickname

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
        result = expression.evaluate(value)
        return Step(name, expression.text, result, "", missing(expression, value, result))
    except Broken as error:
        return Step(name, expression.text, None, error.reason)
