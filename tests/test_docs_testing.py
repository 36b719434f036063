"""The guides on testing and on deleting accounts are true: programs, tests, drill, nightly job."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from support.databases import sqlite_databases
from support.pages import ROOT, code_blocks, page
from support.processes.admin import WITH_ADMIN
from support.processes.proxies import find_tool
from support.processes.service import KEY, serving
from support.processes.shell_commands import shell_commands
from tornado_idv import client
from tornado_idv.double import IdentityService
from tornado_idv.model import User

PAGE = page("docs/guide/testing.md")
CLIENT = page("docs/reference/client.md")
DELETING = page("docs/guide/deleting-accounts.md")
SEARCH_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

pytestmark = [pytest.mark.slow, pytest.mark.ci]


def run(command: list[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": SEARCH_PATH, **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A search path on which ``tornado-idv`` starts no interpreter."""
    folder = tmp_path_factory.mktemp("forked")
    with shell_commands(folder):
        yield f"{folder}{os.pathsep}{SEARCH_PATH}"


def test_application_is_tested_with_pytest(tmp_path: Path) -> None:
    application, tests = code_blocks(PAGE, "python")
    unsafe = application.replace("self.undetermined.append(nickname)", "self.taken.clear()")
    for name, text in {"seats": application, "unsafe": unsafe}.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        renamed = tests.replace("from seats import", f"from {name} import")
        (tmp_path / f"test_{name}.py").write_text(renamed, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:tornasync"]
    done = run(command, tmp_path)
    assert "1 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_unsafe.py" in done.stdout


def test_double_is_used_from_node(tmp_path: Path) -> None:
    node = find_tool("node")
    shutil.copy(ROOT / "examples" / "double" / "seats.test.mjs", tmp_path)
    done = run([node, "--test", "seats.test.mjs"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass 2" in done.stdout
    done = run([node, "--test", "seats.test.mjs"], tmp_path, PATH="/absent")
    assert "error: 'tornado-idv did not start" in done.stdout, done.stdout


def test_drill_of_the_page_prints_its_output(forked: str) -> None:
    find_tool("curl")
    _, command, *_ = code_blocks(PAGE, "sh")
    (output,) = code_blocks(PAGE, "text")
    done = run(["sh", "-c", command], ROOT, PATH=forked)
    assert (done.returncode, done.stdout) == (0, output), done.stderr


def test_users_of_a_directory_become_a_fixture(tmp_path: Path, forked: str) -> None:
    find_tool("jq")
    *_, export, lookups = code_blocks(PAGE, "sh")
    database = sqlite_databases.write(
        tmp_path / "people.db", User("Größer 😀", "4000123412341234", "alice")
    )
    (tmp_path / "nicknames.txt").write_text("@alice\n@nobody\n")
    config = "profile_sites: [https://profiles.example]\nbackends: [{name: people, KIND}]\n"
    for name, kind in {
        "config": "sqlite, path: people.db",
        "copy": "yaml, path: users.yaml",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(config.replace("KIND", f"kind: {kind}"))
    lookup = ["tornado-idv", "lookup", "@alice", "--json", "--config"]
    expected = run([*lookup, "config.yaml"], tmp_path, PATH=forked).stdout
    assert '"status": "ok"' in expected
    for block in (export, lookups):
        done = run(["sh", "-c", block], tmp_path, PATH=forked)
        assert (done.returncode, done.stderr) == (0, "")
        assert run([*lookup, "copy.yaml"], tmp_path, PATH=forked).stdout == expected
        (tmp_path / "users.yaml").unlink()
    database.unlink()
    done = run(["sh", "-c", lookups], tmp_path, PATH=forked)
    assert done.returncode != 0
    assert "undetermined" in done.stderr
    assert run([*lookup, "copy.yaml"], tmp_path, PATH=forked).returncode == 3


CALLERS = {
    "safe.py": [sys.executable],
    "safe.mjs": ["node"],
    "safe.go": ["go"],
    "unsafe.py": [sys.executable],
    "unsafe.sh": ["sh", "curl"],
}
"""What runs each, and what it runs."""


@pytest.fixture(scope="module")
def drills(
    tmp_path_factory: pytest.TempPathFactory, forked: str
) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Drills of all callers at once: most of their time they wait for a timeout."""
    folder = tmp_path_factory.mktemp("callers")

    def drill(caller: str) -> subprocess.CompletedProcess[str]:
        command = [CALLERS[caller][0], f"examples/callers/{caller}"]
        if command[0] == "go":
            program = str(folder / "safe")
            build = ["go", "build", "-o", program, command[-1]]
            done = run(build, ROOT, GOCACHE=str(folder / "go"))
            assert done.returncode == 0, done.stderr
            command = [program]
        return run(["tornado-idv", "drill", "--json", "--", *command], ROOT, PATH=forked)

    with ThreadPoolExecutor() as threads:
        installed = [each for each, tools in CALLERS.items() if all(map(shutil.which, tools))]
        yield {each: threads.submit(drill, each) for each in installed}


@pytest.mark.parametrize("caller", CALLERS)
def test_drill_tells_safe_callers_from_unsafe_ones(
    caller: str, drills: dict[str, Future[subprocess.CompletedProcess[str]]]
) -> None:
    """A safe one comes to each right conclusion, and an unsafe one takes all faults for "gone"."""
    for tool in CALLERS[caller]:
        find_tool(tool)
    done = drills[caller].result()
    runs = {each["scenario"]: each["conclusion"] for each in json.loads(done.stdout)["runs"]}
    faults = {"503", "no response", "connection reset", "body cut", "HTML 404 of a proxy"}
    faults |= {"401 after a rotation", "429"}
    fault = "unsure" if caller.startswith("safe") else "gone"
    assert {runs[each] for each in faults} == {fault}, runs
    assert (runs["found"], runs["not found"]) == ("found", "gone")
    assert done.returncode == (0 if caller.startswith("safe") else 1)


def test_double_has_users_and_faults_by_each_form_of_a_name() -> None:
    with IdentityService.start() as service, service.client() as caller:
        for identifier in ("@ann", "https://profiles.example/m/ann"):
            service.add(client.User("Free", "4111", "@ann"))
            service.slow(identifier, 0.001)
            assert caller.find(identifier) is not None
            service.fail(identifier, status=500)
            with pytest.raises(client.Undetermined):
                caller.find(identifier)
            service.reset()
        with pytest.raises(ValueError, match="plan: "):
            service.add(client.User("", "4111", "@ann"))
        url = "https://other.example/ann"
        service.add(client.User("Free", "4111", "@ann", url))
        assert caller.get("@ann").profile_url == url
        service.add(client.User("Free", "4112", "bob"))
        assert caller.get("@bob").card_number == "4112"


def test_client_of_the_reference_looks_up(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text((ROOT / "deploy/demo/users.yaml").read_text("utf-8"))
    script = "\n".join(code_blocks(CLIENT, "python"))
    with serving(f"demo: true\n{WITH_ADMIN}", tmp_path) as service:
        script = re.sub(r'http://127.0.0.1:8080", "\w+', f'{service.url}", "{KEY}', script)
        done = run([sys.executable, "-c", script], tmp_path)
    assert (done.stdout, done.stderr) == ("Free\n@nobody does not exist\n", "")


def test_drill_runs_reconcile_as_a_safe_caller(forked: str) -> None:
    done = run(["sh", "-c", code_blocks(DELETING, "sh")[-1]], ROOT, PATH=forked)
    assert done.returncode == 0, done.stdout
    assert "passed  not found              gone" in done.stdout


def test_every_public_name_is_documented() -> None:
    assert all(f"`{name}`" in CLIENT or f"`{name} " in CLIENT for name in client.__all__)
    members = {name for name in vars(IdentityService) if name[0] != "_"} - {"start"}
    documented = set(re.findall(r"`(\w+)(?:\([^`]*\))?`", PAGE.partition("| member |")[2]))
    assert members | {"url", "key"} <= documented


ACCOUNTS = "id,nickname,email\n17,@alice,a@example.com\n"
GONE = "18,@bob,b@example.com\n"
OTHERS = "".join(f"{number},@user{number},\n" for number in range(30))


@pytest.fixture
def double() -> Iterator[IdentityService]:
    with IdentityService.start() as started:
        started.add(client.User("Free", "9001", "@idv-canary"))
        started.add(client.User("Free", "4001", "@alice"))
        for number in range(30):
            started.add(client.User("Free", f"5{number:03}", f"@user{number}"))
        yield started


def test_nightly_job_deletes_accounts_that_are_gone_alone(
    double: IdentityService, tmp_path: Path, forked: str
) -> None:
    """With a grace of no time: after outages and wrong exports, the job deletes nothing."""
    (job,) = [each for each in code_blocks(DELETING, "sh") if each.startswith("#!/bin/sh")]
    job = job.replace("cd /var/lib/my-app", f"cd {tmp_path}").replace("--grace 3d", "--grace 0s")
    job = job.replace("https://idv.example", double.url).replace(
        "--output", "--retries 0 --confirm-after 0s --output"
    )
    application = '#!/bin/sh\n[ "$1" = export-accounts ] && cat export || cp "$2" deleted\n'
    for name, text in {"job": job, "my-app": application, "key": double.key}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    deleted = tmp_path / "deleted"

    def outcome(export: str) -> tuple[int, str]:
        deleted.unlink(missing_ok=True)
        (tmp_path / "export").write_text(export, encoding="utf-8")
        done = run([str(tmp_path / "job")], tmp_path, PATH=f"{tmp_path}:{forked}")
        return done.returncode, deleted.read_text(encoding="utf-8") if deleted.exists() else ""

    export = ACCOUNTS + GONE + OTHERS
    assert outcome(export) == (0, ACCOUNTS.partition("\n")[0] + "\n" + GONE)
    double.fail("@bob", status=503)
    assert outcome(export) == (3, "")
    double.reset()
    assert outcome(export) == (1, "")  # an empty directory: the canary is gone
    double.add(client.User("Free", "9001", "@idv-canary"))
    assert outcome(export) == (1, "")  # too many
    assert outcome(export.replace("@user", "@other")) == (1, "")
    assert outcome(export.replace("nickname", "name")) == (2, "")


def test_output_of_the_page_is_that_of_a_first_run(
    double: IdentityService, tmp_path: Path, forked: str
) -> None:
    block = code_blocks(DELETING, "console")[0]
    ((command, output),) = re.findall(r"\$ (.*?csv)\n(.*)", block, re.DOTALL)
    (tmp_path / "key").write_text(double.key, encoding="utf-8")
    (tmp_path / "accounts.csv").write_text(ACCOUNTS + GONE + OTHERS, encoding="utf-8")
    command = command.replace("https://idv.example", double.url)
    done = run(["sh", "-c", command], tmp_path, PATH=forked)
    numbers = re.compile(r"[\d,]+(?= )|\d{4}-\S+")
    assert numbers.sub("N", done.stderr) == numbers.sub("N", output)
    assert (tmp_path / "gone.csv").read_text(encoding="utf-8") == "id,nickname,email\n"


def test_units_of_the_page_are_valid(tmp_path: Path) -> None:
    (units,) = code_blocks(DELETING, "ini")
    names = re.findall(r"^# (\S+)$", units, re.MULTILINE)
    for name, text in zip(names, re.split(r"^# .*\n", units, flags=re.MULTILINE)[1:], strict=True):
        unit = text.replace("/usr/local/bin/delete-accounts", "/bin/true")
        (tmp_path / name).write_text(unit.replace("User=my-app\n", ""), encoding="utf-8")
    done = run([find_tool("systemd-analyze"), "verify", "--man=no", *names], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
