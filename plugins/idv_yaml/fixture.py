"""The parser of fixtures. It reports all problems, each with its line and column.

Messages contain line numbers instead of nicknames and card numbers. They also omit the names of
unknown members, because such a name may be a nickname.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from tornado_idv import ByCard, ByNickname, ConfigError, Fault, Problem, Query, User, yaml_loader

Steps = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Fixture:
    """The contents of a fixture file.

    ``users`` has each user by nickname and by card number. ``faults`` maps queries to faults, and
    ``None`` to the fault of all queries. ``counted`` is true if the file has a ``count``.
    """

    users: Mapping[Query, User] = field(repr=False)
    faults: Mapping[Query | None, Fault] = field(repr=False)
    counted: bool


_FIELDS = {
    "nickname": (
        re.compile(r"(?!\.+\Z)(?!.*[/?#%\\])[!-~]{1,64}"),
        (
            "write 1 to 64 printable ASCII characters, but not only dots, without white space and "
            "none of / ? # % \\"
        ),
    ),
    # The maximum of identifiers.card_length.
    "card_number": (re.compile(r"[0-9]{1,64}"), "write 1 to 64 of the digits 0 to 9"),
    "plan": (
        re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,256}"),
        "write 1 to 256 characters without control characters",
    ),
    "profile_url": (
        re.compile(r"(?=.{1,2048}\Z)https?://[^\s\x00-\x1f\x7f-\x9f]+"),
        "write an https:// or http:// URL of at most 2,048 characters, or leave the member out",
    ),
}
"""The pattern of each field of a user, and the advice for a value that does not match."""
_OF_USER = (*_FIELDS, "fault")
_NO_USERS = "missing or empty; the file may be truncated; write users: [] if there are no users"
_NO_LIST = "must be a list; begin each item with a dash"


def parse(
    content: bytes,
    file: str,
    *,
    counted: bool = False,
    folds_nicknames: bool = False,
    allows_faults: bool = False,
) -> Fixture:
    """Parse a fixture. ``file`` is its name in messages. Raises `ConfigError` with all problems.

    With ``counted``, a missing ``count`` is an error, because the file may be truncated. With
    ``folds_nicknames``, the queries by nickname are in lower case. Without ``allows_faults``, a
    fault is an error.
    """
    try:
        root = yaml_loader.read(content, file)
    except ConfigError as error:
        (problem,) = error.problems
        lines = content.decode("utf-8-sig", "replace").split("\n")[problem.line - 1 :]
        if not (lines and lines[0][problem.column - 1 :].startswith("@")):
            raise
        # This is the most frequent error in fixtures: in YAML, ``@`` cannot start a plain text.
        message = "put a value that begins with @ in quotes"
        raise ConfigError(replace(problem, message=message)) from None
    if not isinstance(root, yaml_loader.Mapping):
        message = 'write a mapping with the member "users"'
        raise ConfigError(Problem(file, root.mark.line, root.mark.column, "", message))
    checker = _Checker(root, file, folds_nicknames, allows_faults)
    checker.check(needs_count=counted, is_complete=content.endswith(b"\n"))
    if checker.problems:
        raise ConfigError(*sorted(checker.problems, key=lambda each: (each.line, each.column)))
    return Fixture(checker.users, checker.faults, counted="count" in root)


@dataclass(repr=False)
class _Checker:
    """Collects the users, the faults and the problems of a parsed document."""

    root: dict[Any, Any]
    file: str
    folds_nicknames: bool
    allows_faults: bool
    problems: list[Problem] = field(default_factory=list)
    users: dict[Query, User] = field(default_factory=dict)
    faults: dict[Query | None, Fault] = field(default_factory=dict)
    _firsts: dict[Query, int] = field(default_factory=dict)

    def check(self, *, needs_count: bool, is_complete: bool) -> None:
        """Validate the document. ``is_complete`` means that the file ends with a line break."""
        self._reject_unknown(self.root, ("count", "fault", "users"), ())
        self._fault(self.root, ())
        items = self.root.get("users", "")
        if not isinstance(items, yaml_loader.Items):
            self._report(("users",), _NO_LIST if items else _NO_USERS)
            items = []
        for number, item in enumerate(items):
            self._user(number, item)
        problem = self._problem_of_count(len(items), needed=needs_count, is_complete=is_complete)
        if problem is not None:
            self._report(("count",), problem)

    def _problem_of_count(self, users: int, *, needed: bool, is_complete: bool) -> str | None:
        written = self.root.get("count")
        right = f"the file may be truncated; if {users} is right, set count to {users}"
        if written is None:
            missing = f"missing, but the last fixture had it; {right}"
            return missing if needed else None
        if not (isinstance(written, yaml_loader.Text) and re.fullmatch("[0-9]{1,9}", written)):
            return "write a number"
        if int(written) != users:
            return f"is {int(written)}, but there are {users} users; {right}"
        if not is_complete:
            return "a file with a count must end with a line break; this one may be truncated"
        return None

    def _user(self, number: int, item: Any) -> None:
        path = ("users", number)
        if not isinstance(item, yaml_loader.Mapping):
            self._report(path, "write a mapping with nickname, card_number and plan")
            return
        self._reject_unknown(item, _OF_USER, path)
        # An entry with a fault may lack a user. Then it needs a nickname or a card number.
        is_partial = "fault" in item and "plan" not in item
        nickname, card_number, plan, profile_url = (
            self._field(item, name, path, required=name != "profile_url" and not is_partial)
            for name in _FIELDS
        )
        queries: dict[str, Query] = {}
        if nickname:
            queries["nickname"] = ByNickname(nickname.lower() if self.folds_nicknames else nickname)
        if card_number:
            queries["card_number"] = ByCard(card_number)
        if is_partial and not queries:
            self._report(path, "a fault without a user needs a nickname or a card_number")
        for name, query in queries.items():
            self._reject_duplicate(query, name, path)
        self._fault(item, path, *queries.values())
        if nickname and card_number and plan:
            user = User(plan, card_number, nickname, profile_url)
            self.users |= dict.fromkeys(queries.values(), user)

    def _fault(self, item: dict[Any, Any], path: Steps, *queries: Query) -> None:
        """Read the fault of an entry. Without ``queries``, the fault applies to all lookups."""
        if "fault" not in item:
            return
        path = (*path, "fault")
        if not self.allows_faults:
            self._report(path, "needs demo: true in config.yaml")
            return
        try:
            fault = Fault.model_validate(item["fault"])
        except ValidationError as error:
            for each in error.errors():
                message = each["msg"].removeprefix("Value error, ")
                if each["type"] == "extra_forbidden":
                    message = f"this member is not known; there are {', '.join(Fault.model_fields)}"
                self._report((*path, *each["loc"]), message)
            return
        self.faults |= dict.fromkeys(queries or (None,), fault)

    def _field(self, item: dict[Any, Any], name: str, path: Steps, *, required: bool) -> str | None:
        pattern, wanted = _FIELDS[name]
        value = item.get(name)
        if isinstance(value, yaml_loader.Text):
            # Encoders refuse subclasses of str, so the value becomes a plain str.
            text = str(value.removeprefix("@") if name == "nickname" else value)
            if text.strip() and pattern.fullmatch(text):
                return text
            self._report((*path, name), wanted if text.strip() else "empty")
        elif value is not None:
            self._report((*path, name), "must be text, not a list or mapping")
        elif required:
            self._report((*path, name), "missing")
        return None

    def _reject_duplicate(self, query: Query, name: str, path: tuple[str, int]) -> None:
        first = self._firsts.setdefault(query, path[1])
        if first != path[1]:
            steps = ("users", first, name), (*path, name)
            lines = [yaml_loader.locate(self.root, each).line for each in steps]
            folded = name == "nickname" and self.folds_nicknames
            message = f"lines {lines[0]} and {lines[1]} hold the same {name}"
            self._report((*path, name), f"{message} (nickname_case is fold)" if folded else message)

    def _reject_unknown(self, item: dict[Any, Any], known: Collection[str], path: Steps) -> None:
        for name in item:
            if name not in known:
                near = difflib.get_close_matches(name[:64], known, n=1)
                hint = f'did you mean "{near[0]}"?' if near else f"there are {', '.join(known)}"
                self._report(path, f"this member is not known; {hint}", name.mark)

    def _report(self, path: Steps, message: str, mark: yaml_loader.Mark | None = None) -> None:
        line, column = mark or yaml_loader.locate(self.root, path)
        spelt = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        self.problems.append(Problem(self.file, line, column, spelt.removeprefix("."), message))
