"""The options of an ``ldap`` backend in ``config.yaml``."""

import re
import sys
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from tornado_idv import (
    BackendOptions,
    ByCard,
    ByNickname,
    ConfigPath,
    Duration,
    Options,
    Password,
    Query,
    strict_json,
)
from tornado_idv.kit.mapping import ExpressionText, FieldSource

NOT_INSTALLED = (
    "python-ldap is not installed; install it with: "
    f"{sys.executable} -m pip install 'python-ldap>=3.4.4,<4'"
)
"""Error if python-ldap is missing, with the command that installs it."""
_PLACEHOLDER = re.compile(r"\{([a-z_]*)\}")
_IN_FILTER = re.compile(r"\(\s*([A-Za-z0-9][A-Za-z0-9.-]*)[^()=]*=")
EXACT = re.compile(r"(?i)caseExact\w+|octetString\w+|2\.5\.13\.(?:5|17)|[\d.]+\.109\.114\.1")
"""Pattern of matching rules that compare case-sensitively."""
_COMPARED = re.compile(r"(?i)\(\s*([\w.-]*)[^():=]*(?::dn)?(?::([\w.-]+))?:?=[^()]*\{")
"""Pattern of the attribute to compare with a value, and of the matching rule, if any."""
_URI = re.compile(r"(ldaps?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?")
_PORTS = {"ldap": 389, "ldaps": 636}


def _uri(text: str) -> str:
    """Return the canonical URI. Reject several URIs, and a base DN or a filter in the URI."""
    match = _URI.fullmatch(text)
    try:  # some versions of Python do not check the address in brackets
        server = urlsplit(text if match else "")
        valid = server.port != 0 and ("[" not in text or bool(IPv6Address(server.hostname or "")))
    except ValueError:
        valid = False
    if match is None or not valid:
        raise ValueError("must be like ldaps://dc1.example.org or ldap://dc1.example.org:389")
    return f"{match[1]}://{match[2]}:{match[3] or _PORTS[match[1]]}"


def is_loopback(uri: str) -> bool:
    """Return whether the server of a URI is on this machine."""
    host = urlsplit(uri).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class BindOptions(Options):
    """The credentials of this service: a name and a password, or the client certificate."""

    dn: Annotated[str, Field(min_length=1)] | None = None
    """The distinguished name to bind as."""
    password: Password | None = None
    """The password for ``dn``."""
    sasl: Literal["external"] | None = None
    """The SASL mechanism. With ``external``, the client certificate of ``tls`` is used."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        simple = self.dn is not None and self.password is not None
        if simple == (self.sasl is not None) or (self.dn is None) != (self.password is None):
            raise ValueError("write dn and password, or sasl: external")
        if simple and not (self.password and self.password.get_secret_value()):
            raise ValueError("password is empty: a server would read it as an anonymous bind")
        return self


class TlsOptions(Options):
    """The trusted certificates and the client certificate for TLS."""

    ca_file: ConfigPath | None = None
    """The trusted certificates in PEM. By default, the certificates of the system."""
    cert_file: ConfigPath | None = None
    """The client certificate in PEM."""
    key_file: ConfigPath | None = None
    """The private key of the client certificate in PEM."""

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together")
        return self


def _filter(name: str, text: str) -> str:
    if set(_PLACEHOLDER.findall(text)) != {name}:
        raise ValueError(f"must have the placeholder {{{name}}}, and no other placeholder")
    if not text.startswith("(") or text.count("(") != text.count(")"):
        raise ValueError("must be a filter in parentheses, such as (uid={" + name + "})")
    return text


class NicknameSearch(Options):
    """The search for the user with a nickname."""

    filter: Annotated[str, AfterValidator(lambda text: _filter("nickname", text))]
    """The filter (RFC 4515), with the placeholder ``{nickname}``."""


class CardSearch(Options):
    """The search for the user with a card number."""

    filter: Annotated[str, AfterValidator(lambda text: _filter("card_number", text))]
    """The filter (RFC 4515), with the placeholder ``{card_number}``."""


class ResponseOptions(Options):
    """The sources of a user's fields: expressions on the attributes of an entry."""

    nickname: FieldSource
    """The nickname."""
    card_number: FieldSource
    """The card number."""
    plan: FieldSource
    """The plan."""
    profile_url: FieldSource | None = None
    """The profile URL. By default, it is derived from the nickname."""
    not_known_when: ExpressionText | None = None
    """A condition on the attributes. If it is true, for example for a disabled user, the result is
    "not found"."""


class LdapOptions(BackendOptions):
    """The options of an ``ldap`` backend."""

    uris: Annotated[tuple[Annotated[str, AfterValidator(_uri)], ...], Field(min_length=1)]
    """The servers, in order of preference."""
    bind: BindOptions | None = None
    """The credentials of this service. By default, the bind is anonymous."""
    base_dn: str
    """The distinguished name of the entry below which users are searched."""
    scope: Literal["subtree", "onelevel", "base"] = "subtree"
    """The depth of the search below ``base_dn``."""
    by_nickname: NicknameSearch | None = None
    """The search for the user with a nickname."""
    by_card: CardSearch | None = None
    """The search for the user with a card number."""
    response: ResponseOptions
    """The sources of a user's fields in an entry."""
    start_tls: bool = False
    """Upgrade ``ldap://`` to TLS before the bind."""
    tls: TlsOptions = TlsOptions()
    """The trusted certificates and the client certificate for TLS."""
    insecure: bool = False
    """Allow ``ldap://`` without TLS to other machines: passwords and users are in plain text."""
    require_context_csn: bool | None = None
    """Require a contextCSN in the suffix of base_dn. A replica has none until it is fully loaded.

    By default, only servers with the overlay syncprov need one. After any server has had one, all
    servers need one."""
    references: Literal["ignore", "fail"] = "ignore"
    """The treatment of a search that returns only references to other servers: ignore or fail."""
    connect_timeout: Annotated[Duration, Field(gt=0)] = 2.0
    """The timeout of each step of connecting: TCP, TLS and bind."""
    max_age: Annotated[Duration, Field(gt=0)] = 900.0
    """The maximum age of a connection, ± 10 %. A new one goes to the first server that responds."""

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if not self.searches:
            raise ValueError("a search is missing; write by_nickname or by_card")
        if any(EXACT.fullmatch(rule) for _, rule in self.folded):
            raise ValueError("by_nickname: nickname_case is fold; remove the rule caseExactMatch")
        for uri in self.uris:
            if not self.uses_tls(uri) and not self.insecure and not is_loopback(uri):
                raise ValueError(
                    f"{uri} is plain text: write ldaps://, start_tls: true or insecure: true"
                )
            if self.start_tls and uri.startswith("ldaps://"):
                raise ValueError("start_tls is for ldap://; ldaps:// is TLS already")
        if not strict_json.is_unicode(self.base_dn):
            raise ValueError("base_dn has a lone surrogate")
        return self

    def uses_tls(self, uri: str) -> bool:
        """Return whether the connection to a server uses TLS."""
        return self.start_tls or uri.startswith("ldaps:")

    @property
    def credentials(self) -> int:
        """A hash of the servers, the name and the current password."""
        bind = self.bind
        password = bind.password.get_secret_value() if bind and bind.password else None
        return hash((tuple(sorted(self.uris)), bind and bind.dn, password))

    @property
    def folded(self) -> list[tuple[str, str]]:
        """The attributes to compare with folded nicknames, and their rules in the filter."""
        return _COMPARED.findall(self.searches.get(ByNickname, "")) if self.folds_nicknames else []

    @property
    def filter_attributes(self) -> list[str]:
        """The names of the attributes in the filters."""
        return [name for text in self.searches.values() for name in _IN_FILTER.findall(text)]

    @property
    def searches(self) -> dict[type[Query], str]:
        """The filters, by kind of query."""
        both = (ByNickname, self.by_nickname), (ByCard, self.by_card)
        return {kind: search.filter for kind, search in both if search is not None}
