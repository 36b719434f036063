"""The guide on deleting accounts is true: its nightly job deletes no account of a user."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages import code_blocks, page
from support.processes.proxies import find_tool
from support.processes.shell_commands import shell_commands
from tornado_idv.client import User
from tornado_idv.double import IdentityService

PAGE = page("docs/guide/deleting-accounts.md")
ACCOUNTS = "id,nickname,email\n17,@alice,a@example.com\n18,@bob,b@example.com\n"
GONE = "id,nickname,email\n18,@bob,b@example.com\n"

pytestmark = [pytest.mark.slow, pytest.mark.ci]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """A search path with ``tornado-idv`` and what a test puts into its folder."""
    programs = tmp_path / "programs"
    programs.mkdir()
    with shell_commands(programs):
        yield os.pathsep.join([str(tmp_path), str(programs), os.environ["PATH"]])


@pytest.fixture
def double() -> Iterator[IdentityService]:
    with IdentityService.start() as started:
        started.add(User("Free", "9001", "@idv-canary"))
        started.add(User("Free", "4001", "@alice"))
        for number in range(30):
            started.add(User("Free", f"5{number:03}", f"@user{number}"))
        yield started


def test_nightly_job_deletes_accounts_that_are_gone_alone(
    double: IdentityService, tmp_path: Path, path: str
) -> None:
    """With a grace of no time: after outages and wrong exports, the job deletes nothing."""
    (job,) = [each for each in code_blocks(PAGE, "sh") if each.startswith("#!/bin/sh")]
    job = job.replace("cd /var/lib/my-app", f"cd {tmp_path}").replace("--grace 3d", "--grace 0s")
    job = job.replace("https://idv.example", double.url).replace(
        "--output", "--retries 0 --confirm-after 0s --output"
    )
    application = '#!/bin/sh\n[ "$1" = export-accounts ] && cat export || cp "$2" deleted\n'
    for name, text in {"job": job, "my-app": application, "key": double.key}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    users = "".join(f"{number},@user{number},\n" for number in range(30))

    def run(export: str) -> tuple[int, str]:
        (tmp_path / "deleted").unlink(missing_ok=True)
        (tmp_path / "export").write_text(export, encoding="utf-8")
        environ = {**os.environ, "PATH": path}
        done = subprocess.run([tmp_path / "job"], env=environ, capture_output=True, check=False)
        deleted = tmp_path / "deleted"
        return done.returncode, deleted.read_text(encoding="utf-8") if deleted.exists() else ""

    assert run(ACCOUNTS + users) == (0, GONE)
    double.fail("@bob", status=503)
    assert run(ACCOUNTS + users) == (3, "")
    double.reset()
    assert run(ACCOUNTS + users) == (1, "")  # an empty directory: the canary is gone
    double.add(User("Free", "9001", "@idv-canary"))
    assert run(ACCOUNTS + users) == (1, "")  # too many
    other = users.replace("@user", "@other")
    assert run(ACCOUNTS + other) == (1, "")
    assert run(ACCOUNTS.replace("nickname", "name") + users) == (2, "")


def test_output_of_the_page_is_that_of_a_first_run(
    double: IdentityService, tmp_path: Path, path: str
) -> None:
    block = code_blocks(PAGE, "console")[0]
    ((command, output),) = re.findall(r"\$ (.*?csv)\n(.*)", block, re.DOTALL)
    command = command.replace("https://idv.example", double.url)
    (tmp_path / "key").write_text(double.key, encoding="utf-8")
    users = "".join(f"{number},@user{number},\n" for number in range(30))
    (tmp_path / "accounts.csv").write_text(ACCOUNTS + users, encoding="utf-8")
    environ = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    numbers = re.compile(r"[\d,]+(?= )|\d{4}-\S+")
    assert numbers.sub("N", done.stderr) == numbers.sub("N", output)
    assert (tmp_path / "gone.csv").read_text(encoding="utf-8") == ACCOUNTS.partition("\n")[0] + "\n"


def test_units_of_the_page_are_valid(tmp_path: Path) -> None:
    analyze = find_tool("systemd-analyze")
    (units,) = code_blocks(PAGE, "ini")
    names = re.findall(r"^# (\S+)$", units, re.MULTILINE)
    for name, text in zip(names, re.split(r"^# .*\n", units, flags=re.MULTILINE)[1:], strict=True):
        unit = text.replace("/usr/local/bin/delete-accounts", "/bin/true")
        (tmp_path / name).write_text(unit.replace("User=my-app\n", ""), encoding="utf-8")
    command = [analyze, "verify", "--man=no", *(tmp_path / name for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
