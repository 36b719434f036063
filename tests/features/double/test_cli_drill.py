"""``tornado-idv drill``: conclusions of programs, and how they are reported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.processes.process import Invoke
from tornado_idv.double import IdentityService
from tornado_idv.features.double.drill import SCENARIOS

pytestmark = pytest.mark.slow

Script = Callable[[str], Path]
NAMES = [each.name for each in SCENARIOS]


@pytest.fixture(scope="module")
def double() -> Iterator[IdentityService]:
    with IdentityService.start() as running:
        yield running


@pytest.fixture(autouse=True)
def one_double(double: IdentityService, monkeypatch: pytest.MonkeyPatch) -> None:
    """All drills of this module share a service, whose start takes longer than their runs."""

    @contextmanager
    def start() -> Iterator[IdentityService]:
        yield double

    monkeypatch.setattr(IdentityService, "start", start)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def write(text: str) -> Path:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return write


def results(invoke: Invoke, *arguments: object) -> tuple[int, dict[str, Any]]:
    done = invoke("drill", "--json", *arguments)
    record = json.loads(done.output)
    return done.exit_code, {each["scenario"]: each for each in record["runs"]}


@pytest.mark.parametrize(
    ("code", "conclusion", "failing"),
    [
        (0, "found", {"not found"}),
        (1, "gone", {*NAMES} - {"not found"}),
        (3, "unsure", {"found", "stale answer"}),
        (77, "unsure", {"found", "stale answer"}),
    ],
)
def test_exit_code_is_the_conclusion(
    invoke: Invoke, script: Script, code: int, conclusion: str, failing: set[str]
) -> None:
    exit_code, runs = results(invoke, "--", script(f"exit {code}"))
    assert exit_code == 1
    assert list(runs) == NAMES
    assert {each["conclusion"] for each in runs.values()} == {conclusion}
    assert {name for name, each in runs.items() if not each["passed"]} == failing


def test_output_is_the_conclusion_where_there_are_patterns(invoke: Invoke, script: Script) -> None:
    """The first that matches counts, also of standard error; without a match it is unsure."""
    lines = 'echo begins; echo "in sync" >&2'
    program = script(f"case $TORNADO_IDV_KEY in *rotated*) echo hm;; *) {lines};; esac")
    _, runs = results(invoke, "--found", "^in sync$", "--gone", "sync", "--", program)
    assert runs["found"]["conclusion"] == "found"
    assert runs["401 after a rotation"]["conclusion"] == "unsure"


def test_program_gets_address_key_and_identifier(
    invoke: Invoke, script: Script, double: IdentityService
) -> None:
    program = script(f'test "$1 $2 $TORNADO_IDV_URL" = "--dry-run @drill {double.url}" || exit 1')
    _, runs = results(invoke, "--", program, "--dry-run")
    assert {each["conclusion"] for each in runs.values()} == {"found"}


def test_batch_job_gets_a_list_of_identifiers(
    invoke: Invoke, script: Script, double: IdentityService
) -> None:
    """Each run gets a whole one, also after a job that empties its list."""
    program = script(
        'file=${1#--users=}; read -r user < "$file" && : > "$file" && test "$# $user" = "1 @drill"'
        " || exit 1"
    )
    _, runs = results(invoke, "--", program, "--users={list}")
    assert {each["conclusion"] for each in runs.values()} == {"found"}


def test_program_keeps_its_environment(
    invoke: Invoke, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETTING_OF_THE_PROGRAM", "kept")
    _, runs = results(invoke, "--", script('test "$SETTING_OF_THE_PROGRAM" = kept || exit 1'))
    assert {each["conclusion"] for each in runs.values()} == {"found"}


NAIVE_RULES = {
    "HTML 404 of a proxy": "status == 404",
    "401 after a rotation": "status in (401, 404) and is_ours",
    "503": "attempt and status in (503, 404) and is_ours",
    "429": "status in (429, 404) and is_ours",
    "no response": "error is TimeoutError",
    "connection reset": "error is ConnectionResetError",
    "body cut": "error is http.client.IncompleteRead",
}
"""Scenarios, and conditions by which a program takes it, and no other one, for a missing user."""

CALLER = """
import http.client, json, os, sys

address = os.environ["TORNADO_IDV_URL"].removeprefix("http://")
connection = http.client.HTTPConnection(address, timeout=1.5)
headers = {{
    "Authorization": "Bearer " + os.environ["TORNADO_IDV_KEY"], "Content-Type": "application/json"
}}
for attempt in range(2):
    status, is_ours, error = 0, False, None
    try:
        body = json.dumps({{"input": sys.argv[-1]}})
        connection.request("POST", "/api/v1/identify/url", body, headers)
        response = connection.getresponse()
        text = response.read()
        status = response.status
        is_ours = response.headers["Content-Type"].startswith("application/json")
    except (OSError, http.client.HTTPException) as caught:
        error = type(caught)
    if status == 200:
        sys.exit(0)
    if {condition}:
        sys.exit(1)
    if error or attempt:
        sys.exit(3)
"""


@pytest.mark.parametrize(("scenario", "condition"), NAIVE_RULES.items(), ids=NAIVE_RULES)
def test_scenario_catches_the_naive_rule_for_it(
    invoke: Invoke, tmp_path: Path, scenario: str, condition: str
) -> None:
    program = tmp_path / "caller.py"
    program.write_text(CALLER.format(condition=condition), encoding="utf-8")
    exit_code, runs = results(invoke, "--timeout", "6s", "--", sys.executable, "-IS", program)
    assert exit_code == 1
    assert [name for name, each in runs.items() if not each["passed"]] == [scenario], runs


def test_program_that_does_not_end_fails(invoke: Invoke, script: Script) -> None:
    done = invoke("drill", "--timeout", "50ms", "--", script("sleep 60"))
    assert done.exit_code == 1
    assert f"FAILED  {'503':<22} did not end in time, expected found or unsure" in done.output


def test_last_line_shows_why_a_scenario_failed(invoke: Invoke, script: Script) -> None:
    """An uncaught exception ends many programs with 1; what it prints is without escapes."""
    program = script("printf 'trace\\n\\033[1mno route\\n\\n' >&2; exit 1")
    done = invoke("drill", "--", program)
    assert done.output.count("        last line of output: [1mno route\n") == len(NAMES) - 1
    _, runs = results(invoke, "--", program)
    assert runs["503"]["last_line"] == "[1mno route"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--", "no-such-program"), 3, "no-such-program: cannot be run: No such file or directory"),
        (("--found", "(", "--", "true"), 2, "not a regular expression"),
        (("--timeout", "5", "--", "true"), 2, "not a duration"),
        ((), 2, "COMMAND..."),
    ],
)
def test_wrong_use_is_an_error(
    invoke: Invoke, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = invoke("drill", *arguments)
    assert done.exit_code == code
    assert message in done.output
