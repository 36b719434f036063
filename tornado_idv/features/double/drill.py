"""The command ``tornado-idv drill``. It detects programs that take an outage for a missing user."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click

from tornado_idv.cli.common import Record, examples, exit_on_error, json_option, show
from tornado_idv.client import User
from tornado_idv.double import IdentityService
from tornado_idv.errors import StartError
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.keys.token import issue
from tornado_idv.kit.option_values import parsed_by
from tornado_idv.units import parse_duration

_FOUND, _GONE, _UNSURE, _NONE = "found", "gone", "unsure", "did not end in time"
_USER = User("Free", "4000123412341234", "@drill")


class Scenario(NamedTuple):
    """A state of the service, and ``right``: the correct conclusions of a program in this state.

    If ``exists`` is true, the user exists. ``fault`` has the members of the `Fault` to simulate.
    With ``rotated``, the program gets an invalid key, as after a key rotation.
    """

    name: str
    exists: bool = True
    fault: dict[str, Any] | None = None
    rotated: bool = False
    right: tuple[str, ...] = (_FOUND, _UNSURE)


SCENARIOS = (
    Scenario("found", right=(_FOUND,)),
    Scenario("not found", exists=False, right=(_GONE, _UNSURE)),
    Scenario("503", fault={"status": 503}),
    Scenario("503, then found", fault={"status": 503, "times": 1}),
    Scenario("no response", fault={"delay": "1h"}),
    Scenario("connection reset", fault={"reset": True}),
    Scenario("body cut", fault={"cut": True}),
    Scenario("HTML 404 of a proxy", fault={"proxy_status": 404}),
    Scenario("401 after a rotation", rotated=True),
    Scenario("429", fault={"status": 429}),
    # The service sends a stale answer after the timeout of a backend, by default 800 ms.
    Scenario("stale answer", fault={"delay": "800ms"}, right=(_FOUND,)),
)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


def _pattern_option(conclusion: str) -> Callable[[Any], Any]:
    return click.option(
        f"--{conclusion}",
        metavar="REGEX",
        callback=parsed_by(_pattern),
        help=f'Output that matches REGEX means "{conclusion}".',
    )


@click.command(epilog=examples("drill -- python my_sync.py --dry-run"))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@_pattern_option(_FOUND)
@_pattern_option(_GONE)
@_pattern_option(_UNSURE)
@click.option(
    "--timeout",
    default="10s",
    callback=parsed_by(parse_duration),
    help="Timeout of each run.",
)
@json_option
def drill(
    *, command: tuple[str, ...], timeout: float, as_json: bool, **patterns: re.Pattern[str] | None
) -> None:
    """Check that a program survives an outage of this service.

    COMMAND is run once for each scenario. TORNADO_IDV_URL and TORNADO_IDV_KEY are in its
    environment, and an identifier is its last argument. For a batch job, write {list} in COMMAND
    to pass the path of a file with the identifier instead.

    The exit code of COMMAND is its conclusion about the user: 0 found, 1 gone, any other unsure.
    With --found, --gone or --unsure, the first pattern that matches the output decides instead.

    A run fails in three cases: the conclusion is "gone", although the service did not report that
    the user does not exist; the conclusion is not "found", although the service returned the user;
    or the program exceeds --timeout.

    Exit codes: 0 all passed; 1 some failed; 2 wrong use; 3 the service did not start.
    """
    given = {name: each for name in (_FOUND, _GONE, _UNSURE) if (each := patterns[name])}
    runs = []
    with exit_on_error(Exit.UNDETERMINED, as_json=as_json):
        for run in _runs(command, given, timeout):
            runs.append(run)
            if not as_json:
                _print_run(run)
    failed = sum(not each["passed"] for each in runs)
    text = f"{len(runs) - failed} of {len(runs)} scenarios passed"
    show({"ok": not failed, "runs": runs}, [text], as_json=as_json)
    sys.exit(Exit.NO if failed else Exit.DONE)


def _runs(
    command: Sequence[str], patterns: dict[str, re.Pattern[str]], timeout: float
) -> Iterator[Record]:
    with IdentityService.start() as service, TemporaryDirectory(prefix="tornado-idv-") as folder:
        users = Path(folder, "users.txt")
        arguments = [each.replace("{list}", str(users)) for each in command]
        if arguments == list(command):
            arguments.append(_USER.nickname)
        for scenario in SCENARIOS:
            service.reset()
            users.write_text(f"{_USER.nickname}\n", encoding="utf-8")
            if scenario.exists:
                service.add(_USER)
            if scenario.fault:
                service.fail(_USER.nickname, **scenario.fault)
            key = issue("rotated") if scenario.rotated else service.key
            code, output = _run(arguments, service.url, key, timeout)
            conclusion = _conclusion(code, output, patterns)
            lines = output.strip().splitlines()
            yield {
                "scenario": scenario.name,
                "conclusion": conclusion,
                "right": scenario.right,
                "exit_code": code,
                "last_line": "".join(filter(str.isprintable, lines[-1])) if lines else "",
                "passed": conclusion in scenario.right,
            }


def _run(command: Sequence[str], url: str, key: str, timeout: float) -> tuple[int | None, str]:
    """Run the program. Return its exit code, or ``None`` after a timeout, and its output."""
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command
            command,
            env={**os.environ, "TORNADO_IDV_URL": url, "TORNADO_IDV_KEY": key},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    except OSError as error:
        raise StartError(f"{command[0]}: cannot be run: {error.strerror}") from None
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def _conclusion(code: int | None, output: str, patterns: dict[str, re.Pattern[str]]) -> str:
    if code is None:
        return _NONE
    if patterns:
        return next((name for name, each in patterns.items() if each.search(output)), _UNSURE)
    return {0: _FOUND, 1: _GONE}.get(code, _UNSURE)


def _print_run(run: Record) -> None:
    passed = run["passed"]
    result = click.style("passed", fg="green") if passed else click.style("FAILED", fg="red")
    wanted = "" if passed else f", expected {' or '.join(run['right'])}"
    click.echo(f"{result}  {run['scenario']:<22} {run['conclusion']}{wanted}")
    if not passed and run["last_line"]:
        click.echo(f"        last line of output: {run['last_line']}")
