"""The benchmarks run, and their report is complete; the figures themselves are not tested."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from benchmarks import rounds
from benchmarks.figures import Figure
from benchmarks.plan import Plan
from benchmarks.suite import BENCHMARKS
from support.processes.process import command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
TOY = ("--keys=20", "--users=20", "--users=60", "--rounds=1")
NAMES = ("hit", "dispatch", "sqlite", "memory")
"""The benchmarks without HTTP; tests of those over HTTP are in test_wire_benchmarks.py."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture(scope="module")
def all_run(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run all benchmarks without HTTP, at toy size, in a process that they pin to a core."""
    report = ("--strict", f"--folder={folder}", f"--json={folder / 'report.json'}")
    return command(
        *TOY, *(f"--only={name}" for name in NAMES), *report, module="benchmarks", cwd=ROOT
    )


@pytest.fixture(scope="module")
def report(all_run: subprocess.CompletedProcess[str], folder: Path) -> Any:
    assert all_run.returncode in {0, 1}, all_run.stderr
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def test_every_figure_of_the_named_benchmarks_is_compared_with_its_target(report: Any) -> None:
    figures = report["figures"]
    assert {each["benchmark"] for each in figures if each["target"]} == {*NAMES}
    assert {each["benchmark"] for each in figures} | {*report["skipped"]} == {*NAMES}
    for figure in figures:
        value, target = figure["value"], figure["target"]
        assert figure["rounds"] == [value], figure
        if target is None:
            assert figure["met"] is None
        elif target["at"] == "most":
            assert figure["met"] is (value <= target["bound"])
        else:
            assert figure["met"] is (value >= target["bound"])


def test_value_is_the_median_of_the_rounds() -> None:
    assert Figure("lookups", "s", (9.0, 1.0, 2.0)).value == 2.0
    assert Figure("lookups", "s", (1.0, 2.0)).value == 1.5


async def test_every_other_round_runs_the_sides_in_reverse_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each has run once to warm up, which is not measured."""
    monkeypatch.setattr(rounds, "tune_gc", lambda: None)
    ran: list[str] = []

    async def run(name: str) -> int:
        ran.append(name)
        return len(ran)

    plan = Plan(1, (), 2, tmp_path, Progress(disable=True), 1, 0, tmp_path)
    sides = {name: partial(run, name) for name in ("a", "b")}
    assert await rounds.interleave(plan, "runs", sides) == {"a": [3, 6], "b": [4, 5]}
    assert "".join(ran) == "ababba"


def test_strict_exits_with_1_only_if_a_target_is_missed(
    all_run: subprocess.CompletedProcess[str], report: Any
) -> None:
    missed = any(figure["met"] is False for figure in report["figures"])
    assert all_run.returncode == int(missed)


def test_machine_and_versions_are_reported_and_tables_are_kept(
    all_run: subprocess.CompletedProcess[str], report: Any, folder: Path
) -> None:
    for name in ("cpu", "python", "uvloop", "cachetools", "aiosqlite", "SQLite"):
        assert report["machine"][name]
        assert name in all_run.stdout
    assert ("wrk" in report["machine"]) is (shutil.which("wrk") is not None)
    assert {path.name for path in folder.glob("*.db")} == {"users-20.db", "users-60.db"}


def test_each_benchmark_has_the_name_of_its_module() -> None:
    assert {name: each.__module__.rpartition(".")[2] for name, each in BENCHMARKS.items()} == {
        name: name for name in BENCHMARKS
    }
