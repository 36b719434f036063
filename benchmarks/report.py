"""Figures for people, as tables, and for programs, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure

Results = Mapping[str, list[Figure]]
"""Figures by the name of their benchmark."""

_NARROWEST = 120
_VERDICTS = {True: "[green]pass", False: "[red]FAIL", None: ""}


def all_kept(results: Results) -> bool:
    return all(figure.kept is not False for figures in results.values() for figure in figures)


def as_json(machine: Mapping[str, str], results: Results) -> str:
    records = [
        {"benchmark": name, **figure.record()}
        for name, figures in results.items()
        for figure in figures
    ]
    return json.dumps({"machine": machine, "figures": records}, ensure_ascii=False, indent=2)


def show(machine: Mapping[str, str], results: Results) -> None:
    """Prints the machine, what was measured, and last the ratios with their promises."""
    console = Console(width=max(_NARROWEST, Console().width))
    for name, value in machine.items():
        console.print(f"{name:12} {value}", highlight=False, markup=False)
    rows = [(name, figure) for name, figures in results.items() for figure in figures]
    for title, promised in (("Measured", False), ("Promised", True)):
        chosen = [row for row in rows if (row[1].promise is not None) is promised]
        console.print(_table(title, chosen))


def _table(title: str, rows: Iterable[tuple[str, Figure]]) -> Table:
    table = Table(title=title, title_justify="left")
    for header in ("benchmark", "what"):
        table.add_column(header)
    for header in ("median", "lowest to highest", "promise", ""):
        table.add_column(header, justify="right", no_wrap=True)
    for name, figure in rows:
        spread = f"{min(figure.rounds):.2f} to {max(figure.rounds):.2f}"
        median = f"{figure.value:.2f} {figure.unit}"
        table.add_row(name, figure.what, median, spread, _promise(figure), _VERDICTS[figure.kept])
    return table


def _promise(figure: Figure) -> str:
    promise = figure.promise
    return f"at {promise.at} {promise.bound:g} {figure.unit}" if promise else ""
