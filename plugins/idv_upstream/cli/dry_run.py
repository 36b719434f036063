"""One lookup with every step recorded, for the operator.

It holds the whole response, and of the request all but what is named like a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from multidict import CIMultiDict

from idv_upstream.backend import UpstreamBackend
from idv_upstream.cli.masking import mask_body, mask_headers, mask_url
from idv_upstream.request.template import Request
from idv_upstream.response.mapping import Step
from idv_upstream.response.options import Outcome
from idv_upstream.response.raw import Response
from tornado_idv import (
    BackendResult,
    LookupFailed,
    Query,
    Unavailable,
    User,
)


@dataclass
class DryRun:
    """The steps of a lookup, up to a user, "not found" or a ``failure``."""

    method: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    response: Response | None = None
    steps: list[Step] = field(default_factory=list)
    user: User | None = None
    ttl: float | None = None
    """Seconds that the upstream allows to cache it; ``None`` if it does not say."""
    storable: bool = True
    """Whether the upstream allows to cache it at all."""
    failure: LookupFailed | None = None
    secrets: set[str] = field(default_factory=set, repr=False)
    """What must not be printed, wherever it appears."""

    def set_result(self, result: User | BackendResult | None) -> None:
        """Set the user, and how long to cache it."""
        if isinstance(result, BackendResult):
            self.user, self.ttl, self.storable = result.user, result.ttl, result.storable
        else:
            self.user = result


async def dry_run(
    backend: UpstreamBackend,
    query: Query,
    check_user: Callable[[User, Query], None],
    saved: Response | None = None,
) -> DryRun:
    """Look ``query`` up, or read the ``saved`` response. The backend is open."""
    run = DryRun()
    second = None if saved else backend.second_templates.get(type(query))
    try:
        request = backend.templates[type(query)].render(query)
        if second is None:
            await _read(run, backend, query, request, saved)
        else:
            response = await _request(run, backend, request)
            user_id = backend.reader.read_id(query, response)
            line = f"{run.method} {run.url}"
            first = Step("first", line, {"status": response.status, "id": user_id})
            if user_id is None:
                run.set_result(backend.reader.limited(None, response))
            else:
                await _read(run, backend, query, second.render_value(user_id), None, response)
            run.steps.insert(0, first)
        if run.user is not None:
            check_user(run.user, query)
    except LookupFailed as error:
        run.failure = error
    run.secrets = backend.transport.secrets()
    return run


async def _read(
    run: DryRun,
    backend: UpstreamBackend,
    query: Query,
    request: Request,
    saved: Response | None = None,
    *earlier: Response,
) -> None:
    """Send a request, and record how its response, or the ``saved`` one, is read."""
    response = await _request(run, backend, request, saved)
    reader = backend.reader
    meaning = reader.outcome(response.status)
    if meaning is Outcome.READ:
        run.steps = list(reader.mapper.explain(query, reader.document(response)))
    elif meaning is Outcome.NOT_KNOWN and reader.mapper.reads_not_known:
        run.steps = list(reader.mapper.explain_not_known(reader.document(response)))
    run.set_result(reader.read(query, response, *earlier))


async def _request(
    run: DryRun, backend: UpstreamBackend, request: Request, saved: Response | None = None
) -> Response:
    url, headers = backend.transport.shown(request)
    run.method, run.url, run.headers = request.method, mask_url(url), mask_headers(headers)
    run.body = None if request.body is None else mask_body(request.body.decode()).encode()
    run.response = response = saved or await _send(backend, request)
    return response


async def _send(backend: UpstreamBackend, request: Request) -> Response:
    """Return the response, with its body even where a lookup would not read it."""
    statuses: list[int] = []

    def wants_body(status: int) -> bool:
        statuses.append(status)
        return True

    try:
        async with asyncio.timeout(backend.options.timeout):
            return await backend.transport.send(request, wants_body)
    except (LookupFailed, TimeoutError) as error:
        # A body that cannot be read does not matter where a lookup ignores it.
        if statuses and not backend.reader.wants_body(statuses[-1]):
            return Response(statuses[-1], CIMultiDict(), b"")
        if isinstance(error, LookupFailed):
            raise
        raise Unavailable(f"no answer within {backend.options.timeout:g} s") from None
