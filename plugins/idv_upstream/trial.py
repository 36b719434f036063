"""A mapping tried out: one query from request to user, with every step told.

It takes the steps of a lookup and keeps what each came to. It is for the operator's own eyes:
all that the directory answers is in it, and of what we send all but the secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from multidict import CIMultiDict

from idv_upstream.backend import UpstreamBackend
from idv_upstream.client import Reply
from idv_upstream.mapping import Step
from idv_upstream.masking import mask_body, mask_headers, mask_url
from idv_upstream.request import Asking
from idv_upstream.statuses import Outcome
from tornado_idv import (
    BackendResult,
    Broken,
    InvalidFormat,
    LookupFailed,
    Query,
    User,
)

Parse = Callable[[str], Query]
"""Reads ``@nick`` or digits; raises `InvalidFormat`."""


@dataclass
class Trial:
    """What was seen up to where it ended: with a user, with nobody, or with a ``failure``."""

    method: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    reply: Reply | None = None
    steps: list[Step] = field(default_factory=list)
    user: User | None = None
    ttl: float | None = None
    """Seconds for which the directory lets it be fresh; ``None`` if it does not say."""
    storable: bool = True
    """Whether the directory lets it be remembered at all."""
    failure: LookupFailed | None = None
    secrets: set[str] = field(default_factory=set, repr=False)
    """What must not be shown, wherever it appears."""


async def tried(
    backend: UpstreamBackend, query: Query, parse: Parse, saved: Reply | None = None
) -> Trial:
    """Asks for ``query``, or reads the ``saved`` reply as if it had come. The backend is open."""
    trial = Trial()
    try:
        asking = backend.templates[type(query)].asking(query)
        _show(trial, backend, asking)
        trial.reply = saved or await _asked(backend, asking)
        _read(trial, backend, query, trial.reply)
        _check(trial.user, query, parse)
    except LookupFailed as error:
        trial.failure = error
    trial.secrets = backend.transport.secrets()
    return trial


async def _asked(backend: UpstreamBackend, asking: Asking) -> Reply:
    """The reply, with its body even where a lookup would not read it, if that can be had."""
    came: list[int] = []

    def wants_body(status: int) -> bool:
        came.append(status)
        return True

    try:
        return await backend.transport.ask(asking, wants_body)
    except LookupFailed:
        if not came or backend.replies.wants_body(came[-1]):
            raise
        return Reply(came[-1], CIMultiDict(), b"")


def _show(trial: Trial, backend: UpstreamBackend, asking: Asking) -> None:
    url, headers = backend.transport.shown(asking)
    trial.method, trial.url, trial.headers = asking.method, mask_url(url), mask_headers(headers)
    if asking.body is not None:
        trial.body = mask_body(asking.body.decode()).encode()


def _read(trial: Trial, backend: UpstreamBackend, query: Query, reply: Reply) -> None:
    replies = backend.replies
    meant = replies.outcome(reply.status)
    if meant is Outcome.READ:
        trial.steps = list(replies.reading.explained(query, replies.document(reply)))
    elif meant is Outcome.NOT_KNOWN and replies.reading.reads_not_known:
        trial.steps = list(replies.reading.explained_not_known(replies.document(reply)))
    found = replies.read(query, reply)
    if isinstance(found, BackendResult):
        trial.user, trial.ttl, trial.storable = found.user, found.ttl, found.storable
    else:
        trial.user = found


def _check(user: User | None, query: Query, parse: Parse) -> None:
    """Refuses what the service would refuse of any backend."""
    if user is None:
        return
    try:
        both = parse(f"@{user.nickname}"), parse(user.card_number)
    except InvalidFormat as error:
        raise Broken(f"the user is in no valid form: {error}; see identifiers") from None
    if query not in both:
        raise Broken("another user than asked for; nickname_case may be the reason")
