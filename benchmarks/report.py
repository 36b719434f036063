"""Report figures as tables on the console, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.figures import Figure

Results = Mapping[str, list[Figure]]
"""Figures by the name of their benchmark."""

_MIN_WIDTH = 120
_RESULTS = {True: "[green]pass", False: "[red]FAIL", None: ""}


def all_met(results: Results) -> bool:
    return all(figure.met is not False for figures in results.values() for figure in figures)


def as_json(machine: Mapping[str, str], results: Results, skipped: Mapping[str, str]) -> str:
    records = [
        {"benchmark": name, **figure.record()}
        for name, figures in results.items()
        for figure in figures
    ]
    report = {"machine": machine, "figures": records, "skipped": skipped}
    return json.dumps(report, ensure_ascii=False, indent=2)


def show(machine: Mapping[str, str], results: Results, skipped: Mapping[str, str]) -> None:
    """Print the machine, the figures, the figures with targets, and what was skipped."""
    console = Console(width=max(_MIN_WIDTH, Console().width))
    for name, value in machine.items():
        console.print(f"{name:12} {value}", highlight=False, markup=False)
    rows = [(name, figure) for name, figures in results.items() for figure in figures]
    sides = [figure for _, figure in rows if figure.of is not None]
    if sides:
        console.print(_side_by_side(sides))
    for title, has_target in (("Measured", False), ("Targets", True)):
        chosen = [
            (name, figure)
            for name, figure in rows
            if figure.of is None and (figure.target is not None) is has_target
        ]
        if chosen:
            console.print(_table(title, chosen))
    for name, reason in skipped.items():
        console.print(f"Skipped: {name}: {reason}", highlight=False, markup=False)


def _side_by_side(figures: Iterable[Figure]) -> Table:
    """Return one row of medians for each server. The JSON has all rounds."""
    cells: dict[str, dict[str, str]] = {}
    for figure in figures:
        column = f"{figure.what} [{figure.unit}]"
        cells.setdefault(figure.of or "", {})[column] = f"{figure.value:,.2f}"
    table = Table("server", title="Side by side", title_justify="left")
    columns = dict.fromkeys(column for row in cells.values() for column in row)
    for column in columns:
        table.add_column(escape(column), justify="right")
    for server, row in cells.items():
        table.add_row(server, *(row.get(column, "") for column in columns))
    return table


def _table(title: str, rows: Iterable[tuple[str, Figure]]) -> Table:
    table = Table(title=title, title_justify="left")
    for header in ("benchmark", "what"):
        table.add_column(header)
    for header in ("median", "lowest to highest", "target", ""):
        table.add_column(header, justify="right", no_wrap=True)
    for name, figure in rows:
        spread = f"{min(figure.rounds):.2f} to {max(figure.rounds):.2f}"
        median = f"{figure.value:.2f} {figure.unit}"
        table.add_row(name, figure.what, median, spread, _target(figure), _RESULTS[figure.met])
    return table


def _target(figure: Figure) -> str:
    target = figure.target
    return f"at {target.at} {target.bound:g} {figure.unit}" if target else ""
