"""The options of an ``upstream`` backend in ``config.yaml``."""

from collections.abc import Iterator
from typing import Any, Literal, Self, cast

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from idv_upstream.request.options import CardRequest, FirstRequest, NicknameRequest
from idv_upstream.request.template import is_reserved
from idv_upstream.request.url import BaseUrl
from idv_upstream.response.options import Outcome, ResponseOptions, StatusOptions, outcome
from idv_upstream.transport.credentials import Credential, HeaderName, NoCredential
from idv_upstream.transport.tls import TlsOptions
from tornado_idv import BackendOptions, ByCard, ByNickname, Query

# The value false is neither a text nor a record, so a response is rejected if `&&` gives it.
_NATIVE = {
    "by_nickname": {
        "url": "/api/v1/identify/url",
        "json": {"input": "@{nickname}"},
        "repeatable": True,
    },
    "by_card": {
        "url": "/api/v1/identify/card",
        "json": {"card_number": "{card_number}"},
        "repeatable": True,
    },
    "response": {
        "select": "status == 'ok' && @",
        "plan": "plan",
        "card_number": "card_number",
        "nickname": "starts_with(nickname, '@') && nickname",
        "profile_url": "profile_url || `false`",
        "not_known_when": "status == 'error' && code == 'not_found'",
    },
    # This service never sends these statuses, so they come from another server.
    "status": {204: Outcome.BROKEN, 410: Outcome.BROKEN},
    # This service sends ``no-store`` to all clients. The header is not meant for this cache.
    "cache_control": "ignore",
}
"""Options that are added if no request is configured, for another instance of this service."""


class UpstreamOptions(BackendOptions):
    """The options of an ``upstream`` backend.

    Without ``by_nickname`` and ``by_card``, the upstream is another instance of this service.
    """

    base_url: BaseUrl | None = None
    """The URL of the upstream. The paths of requests are appended to it."""
    by_nickname: NicknameRequest | None = None
    """The request for a lookup by nickname."""
    by_card: CardRequest | None = None
    """The request for a lookup by card number."""
    response: ResponseOptions | None = None
    """The mapping from a response to a user."""
    status: StatusOptions = Field(default_factory=dict)
    """Outcomes of status codes. They override the defaults."""
    forward: frozenset[Literal["traceparent", "x-request-id"]] = frozenset()
    """The headers to forward from the client's request. By default, none is forwarded.

    If ``traceparent`` is forwarded, it gets a new span id, and ``tracestate`` is forwarded, too."""
    echo_header: HeaderName | None = None
    """A header for a unique id of each request. The upstream must return this header unchanged."""
    confirm_not_found: bool = True
    """If "not found" arrives on a reused connection without the id of ``echo_header``, repeat the
    request on a new connection, because the response may belong to an earlier request."""
    cache_control: Literal["follow", "ignore"] = "follow"
    """Let ``Cache-Control`` limit the cache time of a response (follow), or ignore it (ignore)."""
    auth: Credential = NoCredential()
    """The credential of this service for requests to the upstream."""
    tls: TlsOptions = TlsOptions()
    """The trusted certificates and the client certificate for TLS."""
    _profile_site: str = PrivateAttr(default="")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_native(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if "endpoints" in given:
            raise ValueError(
                "the option endpoints was removed, because one endpoint may lack a user; write the "
                "base_url of a load balancer, or one backend for each endpoint, and write "
                "on_unavailable: continue in all these backends except the last"
            )
        own = ("by_nickname", "by_card", "response", "status")
        if not given.get("base_url") or any(given.get(name) is not None for name in own):
            return given
        return {**given, "echo_header": given.get("echo_header") or "X-IDV-Request-ID", **_NATIVE}

    @field_validator("auth", mode="before")
    @classmethod
    def _add_kind(cls, auth: Any) -> Any:
        is_login = isinstance(auth, dict) and "login" in auth
        return {"kind": "login", **auth} if is_login else auth

    @field_validator("by_nickname", "by_card")
    @classmethod
    def _check_host(cls, request: FirstRequest | None, info: ValidationInfo) -> FirstRequest | None:
        # An invalid base_url, already reported, has no value here.
        has_host = info.data.get("base_url", True) is not None
        if request and not has_host and any(each.url.startswith("/") for each in request.requests):
            raise ValueError("url must be absolute if base_url is not set")
        return request

    @model_validator(mode="after")
    def _check_forward(self) -> Self:
        requests = [each for first in self.requests.values() for each in first.requests]
        names = {name.lower() for each in requests for name in each.headers}
        own = (self.echo_header or "").lower()
        if own in {*names, *self.forward} or is_reserved(own):
            raise ValueError("echo_header is reserved, or set by headers or forward; rename it")
        if both := sorted(self.forward & names):
            raise ValueError(f"forward and headers both set {both[0]}; write it in one of them")
        return self

    @model_validator(mode="after")
    def _check_complete(self, info: ValidationInfo) -> Self:
        self._profile_site = (info.context or {}).get("profile_site", "")
        if not self.requests:
            if self.base_url is None:
                raise ValueError("needs base_url, or by_nickname and by_card with complete URLs")
            raise ValueError("a request is missing; write by_nickname or by_card")
        if self.response is None:
            raise ValueError("response is missing; write the mapping from a response to a user")
        for kind, request in self.requests.items():
            if request.then is not None and self.response.id is None:
                raise ValueError("response.id is missing; the second request (then) needs it")
            name = "card_number" if kind is ByNickname else "nickname"
            if getattr(self.response, name) is None:
                other = "nickname" if kind is ByNickname else "card number"
                raise ValueError(f"response.{name} is required for lookups by {other}")
        return self

    @property
    def profile_site(self) -> str:
        """The first profile site, for the placeholder ``{profile_site}``."""
        return self._profile_site

    @property
    def requests(self) -> dict[type[Query], FirstRequest]:
        """The configured requests, by kind of query."""
        both = ((ByNickname, self.by_nickname), (ByCard, self.by_card))
        return {kind: request for kind, request in both if request is not None}

    @property
    def has_credential(self) -> bool:
        """True if ``auth`` or ``tls`` has a credential. Credentials in ``headers`` do not count."""
        return not isinstance(self.auth, NoCredential) or self.tls.cert_file is not None

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each option that may cause a wrong "not found" or a wrong user."""
        yield from self.mapping.warnings()
        accepts_one = self.mapping.complete_when is not None or self.mapping.pick == "first"
        for kind, first in self.requests.items():
            name = "by_nickname" if kind is ByNickname else "by_card"
            for size in {each.page_size for each in first.requests}:
                if size == 0:
                    yield f'{name} requests a page of no users, so every user is "not found"'
                elif size == 1 and not accepts_one:
                    yield (
                        f"{name} requests a page of one user, so a second user is not detected; "
                        "request two users, or write pick: first to accept the first user"
                    )
        statuses = sorted({404, *self.status} - {204})
        hiding = [str(each) for each in statuses if outcome(each, self.status) is Outcome.NOT_KNOWN]
        if hiding and self.mapping.not_known_when is None:
            yield (
                f'each response of status {", ".join(hiding)} is read as "not found", even if the '
                "path is wrong. Write not_known_when, a condition on the body. If the upstream "
                f"sends another status for missing users, write status: {{{hiding[-1]}: broken}}"
            )
        if self.folds_nicknames and ByNickname in self.requests:
            yield (
                "nicknames are requested in lower case (identifiers.nickname_case: fold). If the "
                "upstream respects case, it does not find users with capitals in the nickname. "
                "To check the upstream, look up such a user"
            )

    @property
    def mapping(self) -> ResponseOptions:
        """The option ``response``. Validation ensures that it is set."""
        return cast("ResponseOptions", self.response)
