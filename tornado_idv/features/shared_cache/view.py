"""The shared cache in ``/status.json`` and in the metrics."""

from collections.abc import Iterator

from prometheus_client import core

from tornado_idv.admin.metrics import breaker_gauge, counter, gauge, histogram
from tornado_idv.admin.operations import Record
from tornado_idv.admin.report import Report, source_record
from tornado_idv.features.shared_cache.tier import NAME

_READS = ("hit", "miss", "failed", "skipped")
_CALLS = (
    ("lookups", "Reads of the shared cache.", {each: each for each in _READS}),
    ("stores", "Writes to the shared cache.", {"ok": "stored", "failed": "not_stored"}),
    ("purges", "Delivered purges, and failed attempts.", {"ok": "purged", "failed": "not_purged"}),
)
"""For each metric: end of its name, help text, and a counter for each value of ``result``."""


def status(report: Report) -> Record:
    """Return the member ``shared_cache`` of ``/status.json``, ``None`` without a shared cache."""
    if (part := report.process.parts.get(NAME)) is None:
        return {"shared_cache": None}
    (source,) = part.sources
    return {"shared_cache": source_record(source, report.counters) | part.gauges}


def metrics(report: Report) -> Iterator[core.Metric]:
    """Yield the metrics of the shared cache. Without a shared cache, the metrics have no values."""
    part, counted = report.process.parts.get(NAME), report.counters.backends[NAME]
    for name, text, words in _CALLS:
        results = {result: counted.results[word] for result, word in words.items()}
        yield counter(f"idv_shared_cache_{name}", text, results if part else {}, "result")
    text = "Duration of reads from the shared cache."
    durations = {(): [counted.durations]} if part else {}
    yield histogram("idv_shared_cache_duration_seconds", text, durations)
    pending = {(): part.gauges["pending_purges"]} if part else {}
    yield gauge("idv_shared_cache_purges_pending", "Purges not delivered yet.", pending)
    states = {(): part.sources[0].breaker} if part else {}
    yield breaker_gauge("idv_shared_cache_breaker_state", states)
