"""Untrusted text to `Query`: profile URLs, nicknames and card numbers.

Pure and total: any text gives a query or `InvalidFormat`. No URL parser is used, and nothing is
ever fetched. Parsers repair URLs that must be refused: ``urlsplit`` deletes tabs and newlines, and
takes the host from behind a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from msgspec.structs import replace

from tornado_idv.errors import InvalidFormat
from tornado_idv.model import ByCard, ByNickname, Query, User
from tornado_idv.options import compile_pattern

_SITE = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<path>(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)*)"
)
FIELDS = ("nickname", "card_number", "plan", "profile_url")
"""The members of a user in a response."""
MAX_NICKNAME = 256
"""The maximum length of a nickname, with any pattern: matching takes time."""

_UNPRINTABLE = "\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff"
"""Control characters (Unicode category Cc), line separators, and lone surrogates: not UTF-8."""
PLAN_FORMAT = "1 to 256 characters without control characters and line separators"
PROFILE_URL_FORMAT = "an http:// or https:// URL of at most 2,048 characters"
_PLAN = re.compile(rf"(?!\s*\Z)[^{_UNPRINTABLE}]{{1,256}}")
_URL = re.compile(rf"(?=.{{8,2048}}\Z)https?://[^\s{_UNPRINTABLE}]+")
_BY_DEFAULT = compile_pattern("[A-Za-z0-9_.-]{1,64}")
_DEFAULT_PORT = {"http": "80", "https": "443"}


def fold_case(nickname: str) -> str:
    """Return an ASCII nickname in lower case. Others are never valid, and are not changed.

    ``str.lower`` would turn the Kelvin sign, a non-ASCII character, into a "k".
    """
    return nickname.lower() if nickname.isascii() else nickname


def is_plan(text: str) -> bool:
    """Return whether a plan is valid, see `PLAN_FORMAT`."""
    return _PLAN.fullmatch(text) is not None


def is_profile_url(value: object) -> TypeGuard[str]:
    """Return whether a profile URL is valid, see `PROFILE_URL_FORMAT`."""
    return isinstance(value, str) and _URL.fullmatch(value) is not None


@dataclass(frozen=True)
class ProfileSite:
    """A site with ``/m/`` pages of users, such as ``https://profiles.example``.

    ``prefix`` is its canonical spelling: scheme and host in lower case, no
    default port (RFC 3986, 6.2.2.1 and 6.2.3), no slash at the end.
    """

    prefix: str
    path: str
    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> ProfileSite:
        """Parse a site of the configuration.

        Raises `ValueError` for anything but an ``http`` or ``https`` address
        without user info, query and fragment.
        """
        scheme, mark, rest = text.partition("://")
        authority, slash, path = rest.partition("/")
        lowered = f"{scheme}{mark}{authority}".lower() + (slash + path).rstrip("/")
        match = _SITE.fullmatch(lowered)
        if match is None or not text.isascii():
            raise ValueError("not a site address; write it like https://profiles.example")
        default = _DEFAULT_PORT[match["scheme"]]
        origin = f"{match['scheme']}://{match['host']}"
        if match["port"] in (None, default):
            port = f"(?::{default})?"
        else:
            origin += f":{match['port']}"
            port = ""
        pattern = f"(?i:{re.escape(origin)}){port}{re.escape(match['path'])}/m/"
        return cls(origin + match["path"], match["path"], re.compile(pattern, re.ASCII))


@dataclass(frozen=True)
class Identifiers:
    """The valid forms of queries.

    ``sites`` are the profile sites; answers use the first. ``is_nickname`` must accept a nickname;
    with ``nickname_case="fold"`` it gets the nickname in lower case. ``card_length`` is the minimum
    and maximum number of digits of a card number.
    """

    sites: Sequence[ProfileSite]
    is_nickname: Callable[[str], bool] = _BY_DEFAULT
    nickname_case: Literal["preserve", "fold"] = "preserve"
    card_length: tuple[int, int] = (1, 32)

    def parse_input(self, text: str) -> ByNickname:
        """Parse ``@nickname`` or ``{profile_site}/m/nickname``.

        One trailing slash is allowed on a URL. Raises `InvalidFormat`.
        """
        if text.startswith("@"):
            return self.parse_nickname(text[1:])
        for site in self.sites:
            match = site.pattern.match(text)
            name = text[match.end() :].removesuffix("/") if match else ""
            if name and "/" not in name:  # with one, another site may fit: /m/m/alice
                nickname = self._nickname(name)
                if nickname is None:
                    break
                return ByNickname(nickname)
        raise InvalidFormat(self._reason(text))

    def parse_nickname(self, text: str) -> ByNickname:
        """Parse a bare nickname; with folded case the result is in lower case.

        Dots alone are refused: they are path segments.
        """
        nickname = self._nickname(text)
        if nickname is None:
            raise InvalidFormat("nickname_invalid")
        return ByNickname(nickname)

    def _nickname(self, text: str) -> str | None:
        """Return the nickname in canonical form, ``None`` for an invalid one."""
        if len(text) > MAX_NICKNAME or not text.isascii() or not text.strip("."):
            return None
        nickname = fold_case(text) if self.nickname_case == "fold" else text
        return nickname if self.is_nickname(nickname) else None

    def parse_card(self, text: str) -> ByCard:
        """Parse a card number: only ASCII digits, including leading zeros."""
        reason = self._card_fault(text)
        if reason is not None:
            raise InvalidFormat(reason)
        return ByCard(text)

    def _card_fault(self, text: str) -> str | None:
        if not (text.isascii() and text.isdigit()):  # digits of other scripts are not a card number
            return "card_not_digits"
        fewest, most = self.card_length
        return None if fewest <= len(text) <= most else "card_length"

    def parse_any(self, text: str) -> Query:
        """Parse the input of a person: digits are a card number, the rest is a nickname or URL."""
        return self.parse_card(text) if text.isdigit() else self.parse_input(text)

    def accepts(self, user: User) -> bool:
        """Return whether a record's nickname and card number are valid in queries."""
        return not (self._nickname(user.nickname) is None or self._card_fault(user.card_number))

    def profile_url(self, user: User) -> str:
        """The user's own profile URL, or the one derived from the nickname."""
        return user.profile_url or f"{self.sites[0].prefix}/m/{user.nickname}"

    def differences(self, one: User, other: User) -> list[str]:
        """Return the differing members of the responses for two users."""
        members = zip(FIELDS, self.shown(one), self.shown(other), strict=True)
        return [name for name, a, b in members if a != b]

    def shown(self, user: User) -> tuple[str, str, str, str]:
        """Return the members of a response, including a derived profile URL."""
        if self.nickname_case == "fold":
            user = replace(user, nickname=fold_case(user.nickname))
        return user.nickname, user.card_number, user.plan, self.profile_url(user)

    def _reason(self, text: str) -> str:
        """Return why ``text``, which does not begin with ``@``, is not a profile URL."""
        scheme, mark, rest = text.partition("://")
        if not mark:
            return "nickname_without_at" if self._nickname(text) else "not_an_identifier"
        if any(site.pattern.match(text) for site in self.sites):
            return "url_with_query" if "?" in rest or "#" in rest else "nickname_invalid"
        host = re.split(r"[/?#]", rest, maxsplit=1)[0]
        reason = "other_site"
        for site in self.sites:
            if site.pattern.match(f"{scheme}://{host}{site.path}/m/"):
                return "url_without_m"
            if any(site.pattern.match(f"{each}://{host}{site.path}/m/") for each in _DEFAULT_PORT):
                reason = "other_scheme"
        return reason
