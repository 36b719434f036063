"""The `Backend` that looks users up in another HTTP service."""

from __future__ import annotations

import logging
from typing import ClassVar

from msgspec.structs import replace

from idv_upstream.options import UpstreamOptions
from idv_upstream.request.template import Request
from idv_upstream.response.raw import Response
from idv_upstream.response.reader import ResponseReader
from tornado_idv import (
    Backend,
    BackendOptions,
    BackendResult,
    Query,
    Unavailable,
    User,
    trace_context,
)

_ATTEMPTS = 2
_log = logging.getLogger(__name__)


class UpstreamBackend(Backend[UpstreamOptions]):
    """The users of an upstream.

    `open` sends no request: the upstream may start later than this service.
    """

    options_type: ClassVar[type[BackendOptions]] = UpstreamOptions

    def __init__(self, options: UpstreamOptions) -> None:
        from idv_upstream.transport.transport import Transport  # noqa: PLC0415 - imports aiohttp

        super().__init__(options)
        site, requests = options.profile_site, options.requests.items()
        self.templates = {kind: each.template(site) for kind, each in requests}
        self.second_templates = {
            kind: each.then.template(site) for kind, each in requests if each.then is not None
        }
        self.transport = Transport(
            endpoints=options.base_urls,
            auth=options.auth,
            tls=options.tls,
            timeout=options.timeout,
            name=options.name,
            connections=options.max_concurrent,
        )
        self.reader = ResponseReader(
            options.mapping,
            options.statuses,
            hints=options.follows_hints,
            credential=options.has_credential,
            folds_nicknames=options.folds_nicknames,
            secrets=self.transport.secrets,
        )

    @property
    def serves(self) -> frozenset[type[Query]]:
        """The kinds of query that a request is configured for."""
        return frozenset(self.templates)

    async def open(self) -> None:
        """Create the pool of connections; none is established before the first lookup."""
        for warning in self.options.warnings():
            _log.warning("backend %s: %s", self.name, warning)
        await self.transport.open()

    async def find(self, query: Query) -> User | BackendResult | None:
        """Request the user from the upstream; if configured, with the id of a first response."""
        first, second = self.templates[type(query)], self.second_templates.get(type(query))
        if second is None:
            return self.reader.read(query, await self.send(first.render(query)))
        # A user who has gone between the two requests may have another id: both are sent again.
        for _ in range(_ATTEMPTS):
            response = await self.send(first.render(query))
            user_id = self.reader.read_id(query, response)
            if user_id is None:
                return self.reader.limited(None, response)
            answer = await self.send(second.render_value(user_id))
            result = self.reader.read(query, answer, response)
            if (result.user if isinstance(result, BackendResult) else result) is not None:
                return result
        raise Unavailable("the first response has a user, and the second does not know it")

    async def send(self, request: Request) -> Response:
        """Send a request, with the headers that are forwarded."""
        if self.options.forward:
            request = replace(request, headers={**request.headers, **self._forwarded()})
        return await self.transport.send(request, self.reader.wants_body)

    def _forwarded(self) -> dict[str, str]:
        """Return the headers that are forwarded from the request that this lookup runs for."""
        context, forward, headers = trace_context.current_request.get(), self.options.forward, {}
        if context is not None and "x-request-id" in forward:
            headers["X-Request-ID"] = context.request_id
        if context is not None and context.trace is not None and "traceparent" in forward:
            headers["traceparent"] = context.trace.child()
            if context.trace.state:
                headers["tracestate"] = context.trace.state
        return headers

    async def close(self) -> None:
        """Close all connections."""
        await self.transport.close()
