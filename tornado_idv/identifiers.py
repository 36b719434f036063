"""Parsing of untrusted identifiers: profile URLs, nicknames and card numbers.

Every text gives a `Query` or `InvalidFormat`. There is no I/O: URLs are never fetched. No URL
parser is used, because parsers repair URLs that must be refused. For example, ``urlsplit`` deletes
tabs and newlines, and takes the host from behind a backslash.
"""

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
"""The maximum length of a nickname, with any configured pattern. It limits the time to match."""

_UNPRINTABLE = "\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff"
"""Control characters (Unicode Cc), line separators, and lone surrogates (invalid in UTF-8)."""
PLAN_FORMAT = "1 to 256 characters without control characters and line separators"
PROFILE_URL_FORMAT = "an http:// or https:// URL of at most 2,048 characters"
_PLAN = re.compile(rf"(?!\s*\Z)[^{_UNPRINTABLE}]{{1,256}}")
_URL = re.compile(rf"(?=.{{8,2048}}\Z)https?://[^\s{_UNPRINTABLE}]+")
_BY_DEFAULT = compile_pattern("[A-Za-z0-9_.-]{1,64}")
_DEFAULT_PORT = {"http": "80", "https": "443"}


def folded(user: User) -> User:
    """Return a user with the nickname in lower case. If it is not ASCII, return the user unchanged.

    A nickname with other characters is invalid, and must stay invalid: ``str.lower`` would turn the
    Kelvin sign into an ASCII "k".
    """
    return replace(user, nickname=user.nickname.lower()) if user.nickname.isascii() else user


def is_plan(text: str) -> bool:
    """Return whether a plan has the format `PLAN_FORMAT`."""
    return _PLAN.fullmatch(text) is not None


def is_profile_url(value: object) -> TypeGuard[str]:
    """Return whether a value is a profile URL with the format `PROFILE_URL_FORMAT`."""
    return isinstance(value, str) and _URL.fullmatch(value) is not None


@dataclass(frozen=True)
class ProfileSite:
    """A site with profile pages of users below ``/m/``, such as ``https://profiles.example``.

    ``prefix`` is the URL of the site in canonical form: scheme and host in lower case, without a
    default port (RFC 3986, 6.2.2.1 and 6.2.3), without a slash at the end. ``path`` is the path of
    ``prefix``. ``pattern`` matches every form of the URL of a profile, up to the nickname.
    """

    prefix: str
    path: str
    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> "ProfileSite":
        """Parse a site of the configuration.

        Raises `ValueError` unless the text is an ``http`` or ``https`` URL without user info, query
        and fragment.
        """
        scheme, mark, rest = text.partition("://")
        authority, slash, path = rest.partition("/")
        match = _SITE.fullmatch(f"{scheme}{mark}{authority}".lower() + (slash + path).rstrip("/"))
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
    """The rules for valid identifiers, and their parser.

    ``sites`` are the profile sites. URLs that are derived from nicknames use the first site.
    ``is_nickname`` returns whether a nickname is valid; with ``nickname_case="fold"``, it gets the
    nickname in lower case. ``card_length`` is the minimum and maximum number of digits of a card.
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
            # A slash in it may belong to another site, as in /m/m/alice.
            if "/" not in name and (nickname := self._nickname(name)) is not None:
                return ByNickname(nickname)
        raise InvalidFormat(self._reason(text))

    def parse_nickname(self, text: str) -> ByNickname:
        """Parse a nickname without ``@``. With folded case, the result is in lower case.

        Raises `InvalidFormat`. A nickname of dots alone is invalid, because URLs resolve ``..``.
        """
        if (nickname := self._nickname(text)) is None:
            raise InvalidFormat("nickname_invalid")
        return ByNickname(nickname)

    def _nickname(self, text: str) -> str | None:
        """Return the nickname in canonical form, or ``None`` for an invalid nickname."""
        if len(text) > MAX_NICKNAME or not text.isascii() or not text.strip("."):
            return None
        nickname = text.lower() if self.nickname_case == "fold" else text
        return nickname if self.is_nickname(nickname) else None

    def parse_card(self, text: str) -> ByCard:
        """Parse a card number: ASCII digits, including leading zeros. Raises `InvalidFormat`."""
        if reason := self._card_fault(text):
            raise InvalidFormat(reason)
        return ByCard(text)

    def _card_fault(self, text: str) -> str | None:
        if not (text.isascii() and text.isdigit()):  # `isdigit` accepts digits of other scripts
            return "card_not_digits"
        fewest, most = self.card_length
        return None if fewest <= len(text) <= most else "card_length"

    def parse_any(self, text: str) -> Query:
        """Parse digits as a card number, and any other text as a nickname with ``@`` or a URL."""
        return self.parse_card(text) if text.isdigit() else self.parse_input(text)

    def accepts(self, user: User) -> bool:
        """Return whether the nickname and the card number of a user are valid in queries."""
        return not (self._nickname(user.nickname) is None or self._card_fault(user.card_number))

    def profile_url(self, user: User) -> str:
        """Return the stored profile URL of a user, or a URL derived from the nickname."""
        return user.profile_url or f"{self.sites[0].prefix}/m/{user.nickname}"

    def differences(self, one: User, other: User) -> list[str]:
        """Return the names of the members that differ in the responses for two users."""
        members = zip(FIELDS, self.shown(one), self.shown(other), strict=True)
        return [name for name, a, b in members if a != b]

    def shown(self, user: User) -> tuple[str, str, str, str]:
        """Return the members of the response for a user, in the order of `FIELDS`."""
        if self.nickname_case == "fold":
            user = folded(user)
        return user.nickname, user.card_number, user.plan, self.profile_url(user)

    def _reason(self, text: str) -> str:
        """Return the reason why a text without a leading ``@`` is not a valid profile URL."""
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
