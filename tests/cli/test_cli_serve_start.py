"""A stop is never lost, however early: a new interpreter, as the first process of a container."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.processes.process import TIMEOUT, children, eventually
from support.processes.proxies import find_tool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HANGING = "import pathlib, time\npathlib.Path({reached!r}).touch()\ntime.sleep(600)\n"
CONFIG = """\
profile_sites: [https://profiles.example]
server: {port: 0}
auth: {keys: [{id: shop, token: "${file:secret}"}]}
backends: [{name: users, kind: yaml, path: users.yaml}]
"""
SCRIPT = (f"{sys.prefix}/bin/tornado-idv",)


def stopped_while(
    importing: str, folder: Path, command: Sequence[str], number: signal.Signals
) -> int:
    """Return the exit code after a signal while the import of a module does not end."""
    reached = folder / "reached"
    (folder / f"{importing}.py").write_text(HANGING.format(reached=str(reached)))
    return stopped_once(lambda _: reached.exists(), folder, command, number)


@pytest.fixture
def container() -> tuple[str, ...]:
    """The start of a command that runs as the first process of a container."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a process the first one")
    return find_tool("unshare"), "--pid", "--fork"


def stopped_once(
    is_reached: Callable[[int], bool], folder: Path, command: Sequence[str], number: signal.Signals
) -> int:
    """Serve; return the exit code after a signal that is sent once the process is so far."""
    (folder / "config.yaml").write_text(CONFIG)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        [*command, "serve"], cwd=folder, env=environment, stderr=subprocess.DEVNULL
    )
    pids = [process.pid]
    try:
        if command[0].endswith("unshare"):
            eventually(lambda: children(process.pid))
            pids = children(process.pid)
        eventually(lambda: is_reached(pids[0]))
        os.kill(pids[0], number)
        return process.wait(TIMEOUT)
    finally:
        if process.poll() is None:
            os.kill(pids[0], signal.SIGKILL)
            process.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("importing", "command", "number"),
    [
        ("click", SCRIPT, signal.SIGTERM),
        ("pluggy", SCRIPT, signal.SIGINT),
        ("idv_yaml", (sys.executable, "-m", "tornado_idv"), signal.SIGTERM),
    ],
)
def test_stop_of_the_first_process_of_a_container_is_not_lost(
    container: tuple[str, ...],
    tmp_path: Path,
    importing: str,
    command: tuple[str, ...],
    number: signal.Signals,
) -> None:
    """It ends the service with exit code 0 while Python imports."""
    assert stopped_while(importing, tmp_path, (*container, *command), number) == 0


def test_stop_of_the_image_is_not_lost_while_python_starts(
    container: tuple[str, ...], tmp_path: Path
) -> None:
    """It waits until there is a handler."""
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    entry = json.loads(dockerfile.partition("\nENTRYPOINT ")[2].partition("\n")[0])
    assert entry.pop() == "tornado-idv"
    command = [*container, *entry, *SCRIPT]
    assert stopped_once(waits_for_term, tmp_path, command, signal.SIGTERM) == 0


def waits_for_term(pid: int) -> bool:
    """Return whether SIGTERM is blocked, or has a handler; unshare blocks it for a moment."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False
    if status.startswith("Name:\tunshare"):
        return False
    masks = re.findall(r"^Sig(?:Blk|Cgt):\s*(\w+)", status, re.MULTILINE)
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


def test_children_of_a_command_in_the_image_can_be_stopped() -> None:
    code = "import signal, tornado_idv.cli; print(*signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    command = [find_tool("env"), "--block-signal=TERM", sys.executable, "-c", code]
    if subprocess.run([*command[:2], "true"], capture_output=True, check=False).returncode:
        pytest.skip("env has no --block-signal: it needs coreutils 8.31")
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"\n"


def test_other_commands_end_by_a_signal_as_ever(tmp_path: Path) -> None:
    """What they were doing is not done, so that their exit code must not be 0."""
    command = (*SCRIPT, "check", "--config")
    assert stopped_while("click", tmp_path, command, signal.SIGTERM) == -signal.SIGTERM
