"""The `Backend` that looks users up in another HTTP service."""

from __future__ import annotations

import logging
from typing import ClassVar

from idv_upstream.options import UpstreamOptions
from idv_upstream.response.reader import ResponseReader
from tornado_idv import Backend, BackendOptions, BackendResult, Query, User

_log = logging.getLogger(__name__)


class UpstreamBackend(Backend[UpstreamOptions]):
    """The users of an upstream.

    `open` sends no request: the upstream may start later than this service.
    """

    options_type: ClassVar[type[BackendOptions]] = UpstreamOptions

    def __init__(self, options: UpstreamOptions) -> None:
        from idv_upstream.transport.transport import Transport  # noqa: PLC0415 - imports aiohttp

        super().__init__(options)
        self.templates = {
            kind: request.template(options.profile_site)
            for kind, request in options.requests.items()
        }
        self.reader = ResponseReader(
            options.mapping,
            options.statuses,
            hints=options.follows_hints,
            credential=options.has_credential,
            folds_nicknames=options.folds_nicknames,
        )
        self.transport = Transport(
            endpoints=options.base_urls,
            auth=options.auth,
            tls=options.tls,
            timeout=options.timeout,
            name=options.name,
            connections=options.max_concurrent,
        )

    @property
    def serves(self) -> frozenset[type[Query]]:
        """The kinds of query that a request is configured for."""
        return frozenset(self.templates)

    async def open(self) -> None:
        """Create the pool of connections; none is established before the first lookup."""
        for warning in self.options.mapping.warnings():
            _log.warning("backend %s: %s", self.name, warning)
        await self.transport.open()

    async def find(self, query: Query) -> User | BackendResult | None:
        """Request the user from the upstream."""
        request = self.templates[type(query)].render(query)
        response = await self.transport.send(request, self.reader.wants_body)
        return self.reader.read(query, response)

    async def close(self) -> None:
        """Close all connections."""
        await self.transport.close()
