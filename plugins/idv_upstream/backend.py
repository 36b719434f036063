"""The `Backend` that asks another HTTP service."""

from __future__ import annotations

import logging
from typing import ClassVar

from idv_upstream.options import UpstreamOptions
from idv_upstream.replies import Replies
from idv_upstream.request import Template
from idv_upstream.transport import Transport
from tornado_idv import Backend, BackendOptions, BackendResult, Query, User

_log = logging.getLogger(__name__)


class UpstreamBackend(Backend[UpstreamOptions]):
    """The users that another service knows.

    Opening does not ask it: it may come up later than we do.
    """

    options_type: ClassVar[type[BackendOptions]] = UpstreamOptions

    def __init__(self, options: UpstreamOptions) -> None:
        super().__init__(options)
        self.templates = {
            kind: Template.of(request, options.profile_site)
            for kind, request in options.requests.items()
        }
        self.replies = Replies(
            options.reading,
            options.statuses,
            hints=options.follows_hints,
            credential=options.has_credential,
            folds_nicknames=options.folds_nicknames,
        )
        self.transport = Transport(
            endpoints=options.addresses,
            auth=options.auth,
            tls=options.tls,
            timeout=options.timeout,
            name=options.name,
            connections=options.max_concurrent,
        )

    @property
    def serves(self) -> frozenset[type[Query]]:
        return frozenset(self.templates)

    async def open(self) -> None:
        """Makes the pool of connections; none is made before the first lookup."""
        for warning in self.options.reading.warnings():
            _log.warning("backend %s: %s", self.name, warning)
        await self.transport.open()

    async def find(self, query: Query) -> User | BackendResult | None:
        asking = self.templates[type(query)].asking(query)
        reply = await self.transport.ask(asking, self.replies.wants_body)
        return self.replies.read(query, reply)

    async def close(self) -> None:
        await self.transport.close()
