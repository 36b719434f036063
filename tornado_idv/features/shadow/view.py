"""The shadows in ``/status.json`` and in the metrics."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import core

from tornado_idv.admin.metrics import counter
from tornado_idv.admin.operations import Record
from tornado_idv.admin.report import BackendReport, Report, source_record
from tornado_idv.features.shadow import PREFIX
from tornado_idv.identifiers import FIELDS
from tornado_idv.kit.comparison import ComparisonResult

RESULTS = (*get_args(ComparisonResult), "skipped")
_COUNTS = (
    ("comparisons", "Lookups compared with a shadow.", RESULTS, "result"),
    ("differences", "Compared users whose field differs in the shadow.", FIELDS, "field"),
)


def _shadows(report: Report) -> dict[str, BackendReport]:
    part = report.process.parts.get("shadows")
    return {each.name.removeprefix(PREFIX): each for each in part.sources} if part else {}


def status(report: Report) -> Record:
    """Return the member ``shadows`` of ``/status.json``: each shadow with its comparisons."""
    records = []
    for name, each in _shadows(report).items():
        counts, record = report.counters.counts[each.name], source_record(each, report.counters)
        comparisons = {word: counts[word] for word in RESULTS}
        fields = {word: counts[word] for word in FIELDS}
        records.append(record | {"name": name, "comparisons": comparisons, "fields": fields})
    return {"shadows": records}


def metrics(report: Report) -> Iterator[core.Metric]:
    shadows, counts = _shadows(report).items(), report.counters.counts
    for metric, text, words, label in _COUNTS:
        values = {(name, word): counts[each.name][word] for name, each in shadows for word in words}
        yield counter(f"idv_shadow_{metric}", text, values, "backend", label)
