"""The environment of a test is the same on every machine."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = [
    *("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "TORNADO_IDV_CONFIG", "IDV_KEY"),
    *("LANG", "LC_ALL", "LANGUAGE", "TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"),
    *("JOURNAL_STREAM", "NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC", "XDG_CONFIG_HOME"),
    *("http_proxy", "HTTPS_PROXY", "no_proxy", "PGHOST", "REDISCLI_AUTH", "LDAPTLS_REQCERT"),
    *("MAKEFLAGS", "CDPATH"),
]
HOSTILE = {
    **dict.fromkeys(NAMES, "1"),
    "TZ": "Asia/Kathmandu",
    "PYTEST_ADDOPTS": "--strict-markers",
}


def test_environment_and_file_modes_are_those_of_the_tests(tmp_path: Path) -> None:
    done = subprocess.run(["env"], capture_output=True, text=True, check=True)
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert names & HOSTILE.keys() == {"TZ"}
    assert os.environ["TZ"].startswith("NZST")
    assert len(os.fsencode(tmp_path)) < 95  # with the name of a Unix socket
    assert " " not in str(tmp_path)
    (tmp_path / "file").touch()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


@pytest.mark.slow
@pytest.mark.ci
def test_environment_is_not_inherited(tmp_path: Path) -> None:
    """The test above passes in a hostile environment, in a process of pytest-xdist.

    Of these the paths are longer than of one that pytest starts itself.
    """
    long = tmp_path / "a name with blanks that is rather long"
    long.mkdir()
    test = test_environment_and_file_modes_are_those_of_the_tests.__name__
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n1", f"{Path(__file__)}::{test}"],
        cwd=ROOT,
        env={**os.environ, **HOSTILE, "TMPDIR": str(long)},
        umask=0o077,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
