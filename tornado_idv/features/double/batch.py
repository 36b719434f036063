"""Batches in the test double."""

from __future__ import annotations

from collections.abc import Sequence

from tornado_idv.double.fault import Fault
from tornado_idv.features.batch.handler import BatchHandler
from tornado_idv.features.double.handlers import DoubleHandler
from tornado_idv.limits.key_limits import KeyLimits
from tornado_idv.model import Query
from tornado_idv.web.response import Result


class DoubleBatchHandler(DoubleHandler, BatchHandler):
    """A ``status`` of 500 or 503 is that of an item; other faults are those of the response."""

    async def _look_up_all(
        self, parsed: Sequence[Query | Result], limits: KeyLimits | None
    ) -> Result:
        results: dict[Query, Result] = {}
        in_pieces: Fault | None = None
        for query in dict.fromkeys(each for each in parsed if not isinstance(each, Result)):
            fault, result = await self.simulate(query)
            if result is not None:
                results[query] = result
                if not result.body.startswith(b"{"):
                    return result  # none at all, or the page of a proxy
            if fault is not None and (fault.cut or fault.drip):
                in_pieces = fault
        parsed = [each if isinstance(each, Result) else results.get(each, each) for each in parsed]
        return await self.send_in_pieces(await super()._look_up_all(parsed, limits), in_pieces)
