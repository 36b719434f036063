"""Percentiles, estimated from the buckets of a histogram."""

from __future__ import annotations

from collections.abc import Sequence

from tornado_idv.metrics.counters import BOUNDS


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """Return the seconds within which a share of the events ended, ``None`` without events.

    As Prometheus does, events are taken as evenly spread within their bucket, and those above the
    last bound as equal to it.
    """
    rank = share * sum(buckets)
    if rank <= 0:
        return None
    below = 0
    for lower, upper, count in zip((0.0, *BOUNDS), BOUNDS, buckets, strict=False):
        if below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below += count
    return BOUNDS[-1]
