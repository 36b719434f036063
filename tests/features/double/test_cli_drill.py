"""``tornado-idv drill``: conclusions of programs, and how they are reported."""

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


def test_program_gets_address_identifier_and_its_environment(
    invoke: Invoke, script: Script, double: IdentityService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SETTING", "kept")
    wanted = f"--dry-run @drill {double.url} kept"
    program = script(f'test "$1 $2 $TORNADO_IDV_URL $SETTING" = "{wanted}" || exit 1')
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


CALLER = """
import http.client, json, os, sys

address = os.environ["TORNADO_IDV_URL"].removeprefix("http://")
connection = http.client.HTTPConnection(address, timeout=1.2)
fields = {
    "Authorization": "Bearer " + os.environ["TORNADO_IDV_KEY"], "Content-Type": "application/json"
}
seen = []
for attempt in range(2):
    try:
        body = json.dumps({"input": sys.argv[-1]})
        connection.request("POST", "/api/v1/identify/url", body, fields)
        response = connection.getresponse()
        response.read()
        seen.append([response.status, response.headers["Content-Type"]])
    except (OSError, http.client.HTTPException) as error:
        seen.append(type(error).__name__)
        break
print(json.dumps(seen))
"""
JSON = "application/json"
SEEN = {
    "found": [[200, JSON]] * 2,
    "not found": [[404, JSON]] * 2,
    "503": [[503, JSON]] * 2,
    "503, then found": [[503, JSON], [200, JSON]],
    "no response": ["TimeoutError"],
    "connection reset": ["ConnectionResetError"],
    "body cut": ["IncompleteRead"],
    "HTML 404 of a proxy": [[404, "text/html"]] * 2,
    "401 after a rotation": [[401, JSON]] * 2,
    "429": [[429, JSON]] * 2,
    "stale answer": [[200, JSON]] * 2,
}


def test_program_sees_in_each_scenario_what_an_outage_would_show(
    invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "caller.py").write_text(CALLER, encoding="utf-8")
    _, runs = results(invoke, "--", sys.executable, "-IS", tmp_path / "caller.py")
    assert {name: json.loads(each["last_line"]) for name, each in runs.items()} == SEEN


def test_program_that_does_not_end_fails(invoke: Invoke, script: Script) -> None:
    done = invoke("drill", "--timeout", "50ms", "--", script("sleep 60"))
    assert done.exit_code == 1
    assert f"FAILED  {'503':<22} did not end in time, expected found or unsure" in done.output


def test_last_line_shows_why_a_scenario_failed(invoke: Invoke, script: Script) -> None:
    """An uncaught exception ends many programs with 1; what it prints is without escapes."""
    program = script("printf 'trace\\377\\n\\033[1mno route\\n\\n' >&2; exit 1")
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
