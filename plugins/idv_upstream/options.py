"""What an ``upstream`` takes in ``config.yaml``: where it is, how it is asked, how it is read."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from idv_upstream.addresses import Address
from idv_upstream.credentials import Credential, NoCredential
from idv_upstream.protocol import OWN_BY_CARD, OWN_BY_NICKNAME, OWN_RESPONSE, OWN_STATUS
from idv_upstream.request import CardRequest, NicknameRequest, RequestOptions
from idv_upstream.responses import ResponseOptions
from idv_upstream.statuses import StatusOptions
from idv_upstream.tls import TlsOptions
from tornado_idv import BackendOptions, ByCard, ByNickname, Query


class UpstreamOptions(BackendOptions):
    """The options of an ``upstream``.

    With neither ``by_nickname`` nor ``by_card`` it is another instance of this service.
    """

    base_url: Address | None = None
    """Where the other service is: what stands in front of the paths that are asked."""
    endpoints: Annotated[tuple[Address, ...], Field(max_length=16)] = ()
    """Several places where it is, instead of ``base_url``; the first that serves is asked."""
    by_nickname: NicknameRequest | None = None
    """How it is asked for a nickname."""
    by_card: CardRequest | None = None
    """How it is asked for a card number."""
    response: ResponseOptions | None = None
    """Where in its answers the user is."""
    status: StatusOptions = Field(default_factory=dict)
    """What single statuses of its answers mean, where that differs from what they usually do."""
    cache_control: Literal["follow", "ignore"] = "follow"
    """Whether ``Cache-Control`` of its answers may shorten how long they are remembered."""
    auth: Credential = NoCredential()
    """The credential that it asks for."""
    tls: TlsOptions = TlsOptions()
    """Whose certificates are believed, and which one is ours."""
    _profile_site: str = PrivateAttr(default="")

    @field_validator("endpoints")
    @classmethod
    def _instead_of_base_url(
        cls, endpoints: tuple[str, ...], info: ValidationInfo
    ) -> tuple[str, ...]:
        if endpoints and info.data.get("base_url") is not None:
            raise ValueError("base_url says already where it is; write one of the two")
        return endpoints

    @field_validator("by_nickname", "by_card")
    @classmethod
    def _goes_somewhere(
        cls, request: RequestOptions | None, info: ValidationInfo
    ) -> RequestOptions | None:
        given = {"base_url", "endpoints"} <= info.data.keys()
        if request is not None and given and not _has_host(request, info):
            raise ValueError("its url has no host; write one there, or base_url beside it")
        return request

    @model_validator(mode="after")
    def _is_whole(self, info: ValidationInfo) -> Self:
        self._profile_site = (info.context or {}).get("profile_site", "")
        if self.speaks_our_protocol:
            if not self.addresses:
                raise ValueError("needs base_url, or by_nickname and by_card with whole URLs")
            if self.response is not None or self.status:
                raise ValueError("how it is asked is missing; write by_nickname or by_card")
        elif self.response is None:
            raise ValueError("response is missing: where in an answer the user is")
        else:
            self._check_response(self.response)
        return self

    @property
    def speaks_our_protocol(self) -> bool:
        """Whether it is another instance of this service."""
        return self.by_nickname is None and self.by_card is None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it is; nowhere, if each request says so itself."""
        return self.endpoints if self.base_url is None else (self.base_url,)

    @property
    def profile_site(self) -> str:
        """The first profile site, which ``{profile_site}`` stands for."""
        return self._profile_site

    @property
    def requests(self) -> dict[type[Query], RequestOptions]:
        """How it is asked, for the kinds of query that it can be asked for."""
        if self.speaks_our_protocol:
            return {ByNickname: OWN_BY_NICKNAME, ByCard: OWN_BY_CARD}
        both: dict[type[Query], RequestOptions | None] = {
            ByNickname: self.by_nickname,
            ByCard: self.by_card,
        }
        return {kind: request for kind, request in both.items() if request is not None}

    @property
    def statuses(self) -> StatusOptions:
        """What its statuses mean."""
        return OWN_STATUS if self.speaks_our_protocol else self.status

    @property
    def follows_hints(self) -> bool:
        """Whether it may shorten how long its answers are remembered.

        Another instance forbids every caller to keep its answers; that is not meant for us.
        """
        return self.cache_control == "follow" and not self.speaks_our_protocol

    @property
    def has_credential(self) -> bool:
        """Whether ``auth`` or a certificate says who asks; a request may do so by itself."""
        return not isinstance(self.auth, NoCredential) or self.tls.cert_file is not None

    @property
    def reading(self) -> ResponseOptions:
        """How its answers are read."""
        return OWN_RESPONSE if self.response is None else self.response

    def _check_response(self, response: ResponseOptions) -> None:
        for kind in self.requests:
            if not response.tells_of(kind):
                name = "card_number" if kind is ByNickname else "nickname"
                raise ValueError(f"response.{name} is missing: it comes from nowhere else")


def _has_host(request: RequestOptions, info: ValidationInfo) -> bool:
    places = [info.data["base_url"], *info.data["endpoints"]]
    return request.is_absolute or any(place is not None for place in places)
