"""One lookup with every step recorded, for the operator.

It holds the whole response, and of the request all but what is named like a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from multidict import CIMultiDict

from idv_upstream.backend import UpstreamBackend
from idv_upstream.cli.masking import mask_request
from idv_upstream.options import UpstreamOptions
from idv_upstream.request.template import Request
from idv_upstream.response.mapping import Step
from idv_upstream.response.raw import Response
from tornado_idv import BackendResult, LookupFailed, Query, Unavailable, User


class DryRun(NamedTuple):
    """The steps of a lookup, up to a result or a ``failure``, with its last request."""

    request: Request
    response: Response | None
    steps: list[Step]
    result: BackendResult
    failure: LookupFailed | None


class RecordingBackend(UpstreamBackend):
    """Records all requests and responses. With a ``saved`` response, no request is sent."""

    def __init__(self, options: UpstreamOptions, saved: Response | None = None) -> None:
        super().__init__(options)
        self.requests: list[Request] = []
        self.responses: list[Response] = []
        self._saved = saved
        if saved is not None:
            self.second_templates = {}

    async def send(self, request: Request, *, on_new: bool = False) -> Response:
        """Record the request, with secrets masked, and its response, with any body there is."""
        self.requests.append(mask_request(self.transport.shown(request)))
        statuses: list[int] = []

        def wants_body(status: int) -> bool | None:
            statuses.append(status)
            return self.reader.wants_body(status) or None

        response = self._saved
        try:
            async with asyncio.timeout(self.options.timeout):
                response = response or await self.transport.send(request, wants_body, on_new=on_new)
        except TimeoutError:
            if not statuses or self.reader.wants_body(statuses[-1]):
                raise Unavailable(f"no answer within {self.options.timeout:g} s") from None
            response = Response(statuses[-1], CIMultiDict(), b"")
        self.responses.append(response)
        return response

    def steps(self, query: Query) -> list[Step]:
        """Return the results of all expressions, and the ids of a lookup in two steps."""
        steps: list[Step] = []
        responses = self.responses
        with suppress(LookupFailed):
            if type(query) in self.second_templates:
                for request, response in zip(self.requests[::2], responses[::2], strict=False):
                    shown = {"status": response.status, "id": self.reader.read_id(query, response)}
                    steps.append(Step("first", f"{request.method} {request.url}", shown))
                last_attempt = (len(self.requests) - 1) // 2 * 2
                responses = responses[last_attempt + 1 :]
            if responses:
                steps += self.reader.explain(query, responses[-1])
        return steps


async def dry_run(
    backend: RecordingBackend, query: Query, check_user: Callable[[User, Query], None]
) -> DryRun:
    """Look ``query`` up; raises `StartError` if the backend cannot be opened."""
    result, failure = BackendResult(None), None
    await backend.open()
    try:
        found = await backend.find(query)
        result = found if isinstance(found, BackendResult) else BackendResult(found)
        if result.user is not None:
            check_user(result.user, query)
    except LookupFailed as error:
        failure = error
    finally:
        await backend.close()
    requests, responses = backend.requests, backend.responses
    request = requests[-1] if requests else Request("", "", {}, None, repeatable=False)
    response = responses[-1] if len(responses) == len(requests) > 0 else None
    return DryRun(request, response, backend.steps(query), result, failure)
