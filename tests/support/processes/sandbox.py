"""A copy of this machine for commands that change it: what they write is gone when they end.

The root file system is an overlay, and the network has nothing but loopback, so commands use the
paths and ports that a reader would.
"""

import os
import subprocess
from pathlib import Path

import pytest

from support.processes.proxies import SEARCH_PATH, find_tool

# The interpreter may be in a folder that only root can enter.
_SETUP = """\
set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
ip link set lo up
chmod 755 "$1/root/root"
exec chroot "$1/root" bash -euc "$2"
"""


def run_in_sandbox(folder: Path, script: str, timeout: float = 100) -> str:
    """Return the output of a bash script; a command that fails ends it, and fails the test.

    ``folder`` is an empty one. Processes that the script leaves are killed at its end.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can make a sandbox")
    # Every tool is looked for first: inside, a missing one would look like a wrong script.
    for tool in ("unshare", "ip", "setpriv"):
        find_tool(tool)
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    done = subprocess.run(
        [*unshare, "bash", "-c", _SETUP, "sandbox", str(folder), script],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={"PATH": SEARCH_PATH, "HOME": "/root", "LANG": "C.UTF-8"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
