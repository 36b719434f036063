"""A command that is forked from the fork server is in the state of one that is started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.processes.forking import fork
from support.processes.process import COMMAND, TIMEOUT
from support.processes.process_limits import descriptors

pytestmark = pytest.mark.slow

PLUGIN = """\
import json
import os
import resource
import signal
import sys
import threading
import time

import click
import tornado_idv


@click.command()
@click.argument("file")
def state(file):
    ""\"Write the state of the process into a file.""\"
    handlers = {each.name: str(signal.getsignal(each)) for each in signal.valid_signals()
                if isinstance(each, signal.Signals)}
    with open("/proc/self/status") as status:
        masks = [line for line in status if line[:6] in ("SigBlk", "SigIgn", "SigCgt")]
    state = {
        "arguments": sys.argv,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
        "streams": [each and each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)],
        "handlers": handlers,
        "masks": masks,
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "path": sys.path,
        "threads": threading.active_count(),
        "timezone": time.tzname,
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    with open(file, "w") as out:
        json.dump(state, out)
    print("written")
    print("on the other stream", file=sys.stderr)
    sys.exit(7)


@click.command()
def killed():
    ""\"Wait for a signal.""\"
    print("ready", flush=True)
    while True:  # a signal just before a sleep is handled after it
        time.sleep(0.05)


@tornado_idv.hookimpl
def idv_commands(tools):
    return [state, killed]
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with a plugin, and all that a test can set."""
    info = tmp_path / "idv_state-1.dist-info"
    info.mkdir()
    (tmp_path / "idv_state.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: idv-state\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tornado_idv]\nstate = idv_state\n")
    with descriptors(200):
        yield {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(tmp_path),
            "TZ": "Asia/Tokyo",
            "LC_ALL": "C.UTF-8",
            "PYDANTIC_DISABLE_PLUGINS": "__all__",  # set by imports, which a fork does not repeat
        }


def run_both(folder: Path, arguments: Sequence[str], env: dict[str, str]) -> Iterator[Any]:
    """Yield a process of each way to start a command, with the same environment."""
    for start in ("exec", "fork"):
        with (
            (folder / f"{start}.out").open("w") as stdout,
            (folder / f"{start}.err").open("w") as stderr,
        ):
            words = [each.format(start=start) for each in arguments]
            if start == "exec":
                yield subprocess.Popen(
                    [*COMMAND, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=env,
                    cwd=folder,
                )
            else:
                yield fork(
                    *words, stdout=stdout.fileno(), stderr=stderr.fileno(), env=env, cwd=folder
                )


def test_state_and_results_are_those_of_a_new_interpreter(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    codes = [
        process.wait(TIMEOUT) for process in run_both(tmp_path, ["state", "{start}"], environment)
    ]
    assert codes == [7, 7]
    executed, forked = (json.loads((tmp_path / start).read_text()) for start in ("exec", "fork"))
    assert executed["arguments"].pop() == "exec"
    assert forked["arguments"].pop() == "fork"
    assert forked == executed
    for stream, text in (("out", "written\n"), ("err", "on the other stream\n")):
        assert (tmp_path / f"exec.{stream}").read_text() == text
        assert (tmp_path / f"fork.{stream}").read_text() == text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_signal_ends_a_forked_command(
    tmp_path: Path, environment: dict[str, str], number: signal.Signals
) -> None:
    reading, writing = os.pipe()
    with (tmp_path / "log").open("w") as log, os.fdopen(reading) as stdout:
        process = fork("killed", stdout=writing, stderr=log.fileno(), env=environment)
        os.close(writing)
        assert stdout.readline() == "ready\n"
        assert process.poll() is None
        process.send_signal(number)
        code = process.wait(TIMEOUT)
        assert stdout.read() == ""
    assert code == (130 if number == signal.SIGINT else -number)
    assert process.poll() == code
