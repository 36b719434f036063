"""Lookups in another HTTP service, the *upstream*."""

import logging
from copy import copy

from msgspec.structs import replace

from idv_upstream.explain import Recorder, for_output
from idv_upstream.options import UpstreamOptions
from idv_upstream.reader import ResponseReader
from idv_upstream.request.template import Request
from idv_upstream.response.mapping import AnotherUser
from idv_upstream.response.raw import Response
from idv_upstream.transport.sender import Sender
from tornado_idv import Backend, BackendResult, Query, Step, Unavailable, User, trace_context

_log = logging.getLogger(__name__)
_PAST_CACHES = {"Cache-Control": "no-cache", "X-IDV-Past-Cache": "1"}
"""Request headers that bypass HTTP caches and the cache of another instance of this service."""


class UpstreamBackend(Backend[UpstreamOptions]):
    """A backend that looks users up in another HTTP service, the upstream.

    `open` sends no request, because the upstream may start later than this service.
    """

    options_type = UpstreamOptions
    can_lose_users = True
    max_age: float | None = None
    """Maximum ``Age`` in seconds of a response for a canary. ``None`` for all other lookups."""

    def __init__(self, options: UpstreamOptions) -> None:
        super().__init__(options)
        self.templates = {
            kind: [each.template(options.profile_site) for each in first.requests]
            for kind, first in options.requests.items()
        }
        self.sender = Sender(
            base_url=options.base_url or "",
            auth=options.auth,
            tls=options.tls,
            timeout=options.timeout,
            name=options.name,
            connections=options.max_concurrent,
            echo_header=options.echo_header,
        )
        self.reader = ResponseReader(options, self.sender.secrets)

    @property
    def serves(self) -> frozenset[type[Query]]:
        """The kinds of query for which a request is configured."""
        return frozenset(self.templates)

    async def open(self) -> None:
        """Create the connection pool. The first lookup connects."""
        for warning in self.options.warnings():
            _log.warning("backend %s: %s", self.name, warning)
        await self.sender.open()

    async def find(self, query: Query) -> User | BackendResult | None:
        """Request the user from the upstream.

        On a reused connection, a response may belong to an earlier request. If it contains neither
        the id sent in ``echo_header`` nor the requested value, the lookup is repeated on a new
        connection.
        """
        responses: list[Response] = []
        try:
            user = await self._look_up(query, responses, on_new=False)
        except AnotherUser:
            if self._is_certain(responses):
                raise
        else:
            # The requested value in a response shows that it belongs to this request.
            is_echoed = self.options.mapping.check_echo and user is not None
            if is_echoed or self._is_certain(responses):
                return self.reader.limited(user, *responses)
        user = await self._look_up(query, responses, on_new=True)
        return self.reader.limited(user, *responses)

    async def find_canary(self, query: Query) -> User | BackendResult | None:
        """Look the canary up with request headers that bypass caches.

        Raises `Unavailable` if the ``Age`` of a response exceeds the ``max_age`` of the canary.
        """
        looking = copy(self)
        looking.max_age = min(each.max_age for each in self.options.canaries)
        return await looking.find(query)

    async def explain(self, query: Query, steps: list[Step]) -> User | BackendResult | None:
        """Look the user up. Append requests, responses and expression results to ``steps``."""
        recorded: list[Step] = []
        recording = copy(self)
        recording.sender = Recorder(self.sender, recorded)
        recording.reader = ResponseReader(self.options, self.sender.secrets)
        recording.reader.mapper.record_steps(recorded)
        try:
            result = await recording.find(query)
            if isinstance(result, BackendResult) and not (result.storable and result.ttl is None):
                limit = f"for at most {result.ttl:g} s" if result.storable else "not at all"
                recorded.append(Step("cache control", f"to be cached {limit} (see cache_control)"))
            return result
        finally:
            steps += for_output(recorded, self.sender.secrets())

    def _is_certain(self, responses: list[Response]) -> bool:
        return not self.options.confirm_not_found or all(each.is_certain for each in responses)

    async def _look_up(
        self, query: Query, responses: list[Response], *, on_new: bool
    ) -> User | None:
        """Send the request and, with ``then``, a second request. Put both into ``responses``."""
        first, *second = self.templates[type(query)]
        value = query.text.removeprefix("@")
        if not second:
            responses[:] = [await self._send(first.render(value), on_new=on_new)]
            return self.reader.read(query, responses[0])
        # A user who is removed and added again between the requests has a new id: repeat both.
        for is_new in (on_new, True):
            responses[:] = [await self._send(first.render(value), on_new=is_new)]
            user_id = self.reader.read_id(query, responses[0])
            if user_id is None:
                return None
            responses.append(await self._send(second[0].render(user_id), on_new=is_new))
            user = self.reader.read(query, responses[1])
            if user is not None:
                return user
        raise Unavailable("the first response has an id, but the second has no user with this id")

    async def _send(self, request: Request, *, on_new: bool) -> Response:
        """Add the headers to forward from the client's request, and send the request."""
        if self.max_age is not None:
            request = replace(request, headers={**request.headers, **_PAST_CACHES})
        context, forward = trace_context.current_request.get(), self.options.forward
        if forward and context is not None:
            headers = dict(request.headers)
            if "x-request-id" in forward:
                headers["X-Request-ID"] = context.request_id
            if context.trace is not None and "traceparent" in forward:
                headers["traceparent"] = context.trace.child()
                if context.trace.state:
                    headers["tracestate"] = context.trace.state
            request = replace(request, headers=headers)
        response = await self.sender.send(request, self.reader.wants_body, on_new=on_new)
        age = response.headers.get("Age", "0") if self.max_age is not None else "0"
        if not (age.isascii() and age.isdigit() and float(age) <= (self.max_age or 0.0)):
            text = "the response is from an HTTP cache, with an Age above the max_age of the canary"
            raise Unavailable(text, counts_against_breaker=False)
        return response

    async def close(self) -> None:
        await self.sender.close()
