"""The command ``python -m benchmarks``."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, report
from benchmarks.plan import Plan
from benchmarks.suite import BENCHMARKS, run
from benchmarks.wire import contenders, wrk

_AT_LEAST_ONE = click.IntRange(min=1)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(BENCHMARKS)),
    help="Run this benchmark; may be repeated.",
)
@click.option("--rounds", type=_AT_LEAST_ONE, default=3, show_default=True)
@click.option(
    "--keys",
    type=_AT_LEAST_ONE,
    default=10_000,
    show_default=True,
    help="Number of users to look up.",
)
@click.option(
    "--users",
    type=_AT_LEAST_ONE,
    multiple=True,
    default=(10_000, 1_000_000),
    show_default=True,
    help="Rows of a SQLite table; repeat for several tables. 10000000 takes minutes to build.",
)
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Keep the tables here and reuse them. By default, each run builds them.",
)
@click.option(
    "--seconds",
    type=_AT_LEAST_ONE,
    default=4,
    show_default=True,
    help="Length of a round over HTTP.",
)
@click.option(
    "--peers",
    type=click.Path(dir_okay=False, path_type=Path),
    default=".venv-bench/bin/python",
    show_default=True,
    help="Python interpreter of the environment with the peers.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--strict", is_flag=True, help="Exit with 1 if a target is not met.")
def main(  # noqa: PLR0917 click passes them by name
    only: tuple[str, ...],
    rounds: int,
    keys: int,
    users: tuple[int, ...],
    folder: Path | None,
    seconds: int,
    peers: Path,
    json_file: Path | None,
    strict: bool,  # noqa: FBT001 click's way
) -> None:
    """Measure the cost of lookups, as ratios between sides in interleaved rounds.

    Everything runs on one core of a Linux machine, except for the HTTP load generator on another.
    On a machine with other load, wall-clock times are noisy: look at the spread of the rounds.
    """
    cores = machine.pin()
    about = machine.describe(*cores)
    with ExitStack() as stack:
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bars = Progress(console=Console(stderr=True), auto_refresh=False)
        plan = Plan(
            keys,
            users,
            rounds,
            folder.absolute(),
            stack.enter_context(bars),
            seconds,
            cores[1],
            peers.absolute(),
        )
        results = uvloop.run(run(plan, only or BENCHMARKS))
        about |= contenders.describe(plan) | wrk.describe()
    report.show(about, results, plan.skipped)
    if json_file is not None:
        json_file.write_text(report.as_json(about, results, plan.skipped) + "\n", encoding="utf-8")
    sys.exit(int(strict and not report.all_met(results)))


if __name__ == "__main__":
    main()
