"""Values of the metrics that a service exposes."""

from collections.abc import Callable
from math import nan

from prometheus_client import parser

from support.processes.admin import HasAdmin, ask_admin

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(service: HasAdmin) -> Callable[..., float]:
    """Return a function from the name and labels of a sample to its value, NaN if it is missing."""
    text = ask_admin(service, "/metrics").body.decode()
    values: Values = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return values.get((name, frozenset(labels.items())), nan)

    return value
