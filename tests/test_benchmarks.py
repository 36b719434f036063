"""The benchmarks run, and their report has its shape; what they measure is no business of tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TOY = ("--keys=20", "--users=20", "--users=60", "--rounds=2")
OWN = ("--only=hit", "--only=dispatch", "--only=sqlite", "--only=memory")
"""The benchmarks in one process; those over HTTP have tests of their own."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m benchmarks`` as ``make bench`` does, in a process that it may pin."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture(scope="module")
def whole(folder: Path) -> subprocess.CompletedProcess[str]:
    """Everything that needs no server, at toy size."""
    return run(*TOY, *OWN, "--strict", f"--folder={folder}", f"--json={folder / 'report.json'}")


@pytest.fixture(scope="module")
def report(whole: subprocess.CompletedProcess[str], folder: Path) -> Any:
    assert whole.returncode in {0, 1}, whole.stderr
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def test_every_benchmark_has_a_promise(report: Any) -> None:
    promised = {each["benchmark"] for each in report["figures"] if each["promise"]}
    assert promised == {"hit", "dispatch", "sqlite", "memory"}


def test_each_figure_is_the_median_of_its_rounds(report: Any) -> None:
    for figure in report["figures"]:
        assert len(figure["rounds"]) == 2, figure
        assert figure["value"] == pytest.approx(sum(figure["rounds"]) / 2), figure


def test_a_promise_is_kept_on_its_side_of_the_bound(report: Any) -> None:
    for figure in report["figures"]:
        value, promise = figure["value"], figure["promise"]
        if promise is None:
            assert figure["kept"] is None
        elif promise["at"] == "most":
            assert figure["kept"] is (value <= promise["bound"])
        else:
            assert figure["kept"] is (value >= promise["bound"])


def test_strict_exits_with_1_only_if_a_promise_is_not_kept(
    whole: subprocess.CompletedProcess[str], report: Any
) -> None:
    broken = any(figure["kept"] is False for figure in report["figures"])
    assert whole.returncode == int(broken)


def test_machine_and_versions_are_told(
    whole: subprocess.CompletedProcess[str], report: Any
) -> None:
    for name in ("cpu", "python", "uvloop", "cachetools", "aiosqlite", "SQLite"):
        assert report["machine"][name]
        assert name in whole.stdout


def test_the_tables_are_kept_in_the_folder_that_is_named(report: Any, folder: Path) -> None:
    assert {path.name for path in folder.glob("*.db")} == {"users-20.db", "users-60.db"}


def test_one_benchmark_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = run(*TOY, "--only=hit", f"--json={file}")
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text(encoding="utf-8"))["figures"]
    assert {figure["benchmark"] for figure in figures} == {"hit"}


def test_help_names_the_options() -> None:
    done = run("--help")
    assert done.returncode == 0
    for option in ("--only", "--json", "--strict", "--users"):
        assert option in done.stdout
