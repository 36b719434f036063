"""The options of an ``upstream`` in ``config.yaml``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self, cast

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from idv_upstream.request.encoding import is_reserved
from idv_upstream.request.options import CardRequest, FirstRequest, NicknameRequest
from idv_upstream.request.url import BaseUrl
from idv_upstream.response.options import Outcome, ResponseOptions, StatusOptions, outcome
from idv_upstream.transport.credentials import Credential, HeaderName, NoCredential
from idv_upstream.transport.tls import TlsOptions
from tornado_idv import BackendOptions, ByCard, ByNickname, Query

# Where an expression is false it is no text and no record, so the response is rejected.
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
    # It never sends these, so something else must have.
    "status": {204: Outcome.BROKEN, 410: Outcome.BROKEN},
    # It sends ``no-store`` to every client, which is not meant for a cache.
    "cache_control": "ignore",
}
"""The options of an upstream that is another instance of this service."""


class UpstreamOptions(BackendOptions):
    """The options of an ``upstream``.

    With neither ``by_nickname`` nor ``by_card``, the upstream is another instance of this
    service.
    """

    base_url: BaseUrl | None = None
    """The URL of the upstream, in front of the paths of the requests."""
    by_nickname: NicknameRequest | None = None
    """The request for a nickname."""
    by_card: CardRequest | None = None
    """The request for a card number."""
    response: ResponseOptions | None = None
    """Where the user is in a response."""
    status: StatusOptions = Field(default_factory=dict)
    """What single statuses mean, where that differs from the default."""
    forward: frozenset[Literal["traceparent", "x-request-id"]] = frozenset()
    """Headers of the client's request that are sent to the upstream; no other ever is.

    ``traceparent`` has a span id of its own, with ``tracestate`` as it came."""
    echo_header: HeaderName | None = None
    """A header with an id of ours, which the upstream sends back with each response."""
    confirm_not_found: bool = True
    """Whether "not found" on a kept connection, without that id, is requested again on a new one,
    since it may be a second response to an earlier request."""
    cache_control: Literal["follow", "ignore"] = "follow"
    """Whether ``Cache-Control`` of a response may shorten how long it is cached."""
    auth: Credential = NoCredential()
    """Our credential."""
    tls: TlsOptions = TlsOptions()
    """Which certificates are trusted, and our own."""
    _profile_site: str = PrivateAttr(default="")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_native(cls, given: Any) -> Any:
        own = ("by_nickname", "by_card", "response", "status")
        if isinstance(given, dict) and "endpoints" in given:
            raise ValueError(
                "endpoints is no option any more, since one of them alone may lack a user; write "
                "the base_url of a balancer, or a backend for each of them, the first with "
                'on_unavailable: continue, so that "not found" needs all of them'
            )
        if not isinstance(given, dict) or any(given.get(name) is not None for name in own):
            return given
        if not given.get("base_url"):
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
        # Without a value, one of the two is invalid, which is reported already.
        has_host = info.data.get("base_url", True) is not None
        for each in (request, request and request.then):
            if each is not None and not each.is_absolute and not has_host:
                raise ValueError("url must be absolute if base_url is not set")
        return request

    @model_validator(mode="after")
    def _check_forward(self) -> Self:
        requests = [each for first in self.requests.values() for each in (first, first.then)]
        names = {name.lower() for each in requests if each is not None for name in each.headers}
        own = (self.echo_header or "").lower()
        if own in {*names, *self.forward} or is_reserved(own):
            raise ValueError("echo_header is set by this service already; write another header")
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
            raise ValueError("response is missing: where the user is in a response")
        for kind, request in self.requests.items():
            if request.then is not None and self.response.id is None:
                raise ValueError("response.id is missing: then needs the id of the user")
            name = "card_number" if kind is ByNickname else "nickname"
            if getattr(self.response, name) is None:
                raise ValueError(f"response.{name} is required: the query has only the other one")
        return self

    @property
    def profile_site(self) -> str:
        """The first profile site, for the placeholder ``{profile_site}``."""
        return self._profile_site

    @property
    def requests(self) -> dict[type[Query], FirstRequest]:
        """The requests, for the kinds of query that the upstream serves."""
        both = ((ByNickname, self.by_nickname), (ByCard, self.by_card))
        return {kind: request for kind, request in both if request is not None}

    @property
    def has_credential(self) -> bool:
        """Return whether there is a credential or client certificate; a request may have one."""
        return not isinstance(self.auth, NoCredential) or self.tls.cert_file is not None

    def warnings(self) -> Iterator[str]:
        """Describe mappings that hide an error or a second user."""
        yield from self.mapping.warnings()
        accepts_one = self.mapping.complete_when is not None or self.mapping.pick == "first"
        for kind, first in self.requests.items():
            name = "by_nickname" if kind is ByNickname else "by_card"
            for size in {each.page_size for each in (first, first.then) if each is not None}:
                if size == 0:
                    yield f'{name} requests a page of no users, so every user is "not found"'
                elif size == 1 and not accepts_one:
                    yield (
                        f"{name} requests a page of one user, so a second one is not noticed; "
                        "request two, or write pick: first if the first is wanted"
                    )
        hiding = [
            str(status)
            for status in sorted({404, *self.status} - {204})
            if outcome(status, self.status) is Outcome.NOT_KNOWN
        ]
        if hiding and self.mapping.not_known_when is None:
            yield (
                f'each response of status {", ".join(hiding)} is read as "not found", that of a '
                "wrong path too; write not_known_when, a condition on its body, or if absent users "
                f"have another status: {{{hiding[-1]}: broken}}"
            )
        if self.folds_nicknames and ByNickname in self.requests:
            yield (
                "nicknames are requested in lower case (identifiers.nickname_case: fold), so the "
                "upstream must ignore case, or hold them in lower case: otherwise users are "
                '"not found"; look up one whose nickname has capitals'
            )

    @property
    def mapping(self) -> ResponseOptions:
        """The mapping of its responses, which is required."""
        return cast("ResponseOptions", self.response)
