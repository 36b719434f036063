"""``tornado-idv serve``: a real process that prints its address and stops on a signal.

A stop is never lost, however early: a new interpreter, as the first process of a container.
"""

import fcntl
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.http.certificate import SELF_SIGNED
from support.processes.forking import ForkedCommand, fork
from support.processes.ports import free_port, listens
from support.processes.process import COMMAND, TIMEOUT, Invoke, children, eventually, running
from support.processes.proxies import find_tool
from support.processes.service import KEY, Client
from tornado_idv.admin.report import ReloadResult
from tornado_idv.cli.backends import load_settings
from tornado_idv.cli.serve import announce
from tornado_idv.config.address import Address
from tornado_idv.config.load import ConfigFile
from tornado_idv.metrics.counters import Counters
from tornado_idv.service import service as service_module
from tornado_idv.service.service import ServiceInfo

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HANGING = "import pathlib, time\npathlib.Path({reached!r}).touch()\ntime.sleep(600)\n"
WITH_SECRET = """\
profile_sites: [https://profiles.example]
server: {port: 0}
auth: {keys: [{id: shop, token: "${file:secret}"}]}
backends: [{name: users, kind: yaml, path: users.yaml}]
"""
SCRIPT = (f"{sys.prefix}/bin/tornado-idv",)
Config = Callable[..., Path]
USERS = "name: users, kind: yaml, path: users.yaml"
ASKING = f"auth: {{keys: [{{id: caller, token: {KEY}}}]}}\n"
ANY_PORT = "server: {port: 0}\n"


def test_the_line_of_a_demo_works_when_pasted(config: Config) -> None:
    more = f"demo: true\nserver: {{port: 0, base_path: /identity, docs: true}}\n{ASKING}"
    others = [USERS.replace("users,", f"{each},") for each in ("more", "new")]
    others[1] += ", shadow: {sample: 5%}"
    with running(config(USERS, *others, more=more)) as service:
        line = shlex.split(service.read_up_to("curl"))
        done = subprocess.run(
            [find_tool("curl"), *line[1:], "--silent", "--noproxy", "*"],
            capture_output=True,
            check=True,
            timeout=20,
        )
        assert json.loads(done.stdout)["nickname"] == "@alice"
        service.stop()
    assert service.announced[:5] == [
        f"Listening on http://127.0.0.1:{service.port}/identity\n",
        f"API documentation: http://127.0.0.1:{service.port}/identity/docs\n",
        "Shadows: new (yaml)\n",
        "Backends, in order: users (yaml), more (yaml)\n",
        "Keys: 1\n",
    ]
    assert "Traceback" not in service.read_log()
    events = [json.loads(each) for each in service.read_log().splitlines()]
    (started,) = [each for each in events if each["event"] == "started"]
    assert (started["backends"], started["shadows"]) == (["users", "more"], ["new"])


GOOD_KEY = f"{{id: good, token: {KEY}}}"
PAST = "{id: past, token: key-of-the-past-past, expires: 2001-01-01T00:00:00Z}"
FUTURE = "{id: future, token: key-of-the-future-1, not_before: 2999-01-01T00:00:00Z}"
CARDS = "{id: cards, token: key-for-the-cards-1, scopes: [identify:card]}"
HASHED = f"{{id: hashed, sha256: {'a' * 64}}}"


@pytest.mark.parametrize(
    ("demo", "keys", "works"),
    [
        ("true", [PAST, FUTURE, CARDS, HASHED, GOOD_KEY], True),
        ("true", [PAST, FUTURE, CARDS, HASHED], False),
        ("true", [], False),
        ("false", [GOOD_KEY], False),
    ],
    ids=["one is good", "none is good", "none", "no demo"],
)
def test_the_line_of_a_demo_has_a_key_that_is_good_now(
    config: Config, capsys: pytest.CaptureFixture[str], demo: str, keys: list[str], *, works: bool
) -> None:
    """Without one there is no line."""
    more = f"demo: {demo}\nauth: {{keys: [{', '.join(keys)}]}}\n"
    settings, _ = load_settings(config(USERS, more=more))
    announce(ServiceInfo([Address("127.0.0.1", 1)], "http", None, len(keys)), settings)
    reported = capsys.readouterr().out
    assert (
        ("curl" in reported) is ("Demo mode" in reported) is (f"Bearer {KEY}'" in reported) is works
    )
    assert "key-" not in reported


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_run_takes_another_port(tmp_path: Path) -> None:
    for name in ("Makefile", "config.yaml", "setup.py"):
        shutil.copy(Path(__file__).parents[2] / name, tmp_path)
    for arguments in (["--silent", ".demo.yaml"], ["--dry-run", "run"]):
        command = ["make", "--no-print-directory", *arguments, "PORT=4711"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True)
    assert done.stdout.endswith("tornado-idv serve --config .demo.yaml\n")
    original = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    demo = (tmp_path / ".demo.yaml").read_text(encoding="utf-8")
    assert demo == (original.replace("port: 8080", "port: 4711").replace("port: 8081", "port: 0"))


@pytest.mark.parametrize(
    ("backend", "code", "reported"),
    [
        ("name: users, kind: yml", 1, "config.yaml:4:"),
        ("name: users, kind: yaml, path: config.yaml", 1, "config.yaml:1:"),
        ("name: users, kind: yaml, path: gone.yaml", 3, "gone.yaml"),
    ],
    ids=["a bad configuration", "a bad fixture", "no fixture"],
)
def test_what_prevents_the_start_is_reported(
    invoke: Invoke, config: Config, backend: str, code: int, reported: str
) -> None:
    """The exit code says whether it is the operator's file or the environment."""
    result = invoke("serve", "--config", config(backend, more=ANY_PORT))
    assert (result.exit_code, result.stdout) == (code, "")
    assert reported in result.stderr
    assert "Traceback" not in result.stderr


def test_hangup_while_the_configuration_is_read_is_a_reload_after_the_start(
    invoke: Invoke,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    read, record = ConfigFile.read, service_module.record

    def read_amid_a_hangup(path: Path, port: int | None) -> ConfigFile:
        monkeypatch.setattr(ConfigFile, "read", read)
        signal.raise_signal(signal.SIGHUP)
        return read(path, port)

    def stop_after_the_reload(
        result: ReloadResult, counters: Counters, audited: dict[str, str | None]
    ) -> None:
        record(result, counters, audited)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ConfigFile, "read", read_amid_a_hangup)
    monkeypatch.setattr(service_module, "record", stop_after_the_reload)
    path = config(USERS, more=f"logging: {{level: info, format: json}}\n{ANY_PORT}")
    assert invoke("serve", "-c", path).exit_code == 0
    lines = map(json.loads, capfd.readouterr().err.splitlines())
    (line,) = [each for each in lines if each["event"] == "reloaded"]
    assert (line["result"], line["trigger"]) == ("ok", "signal")


def test_pipe_of_the_ready_line_is_closed_while_workers_run(config: Config) -> None:
    reading, writing = os.pipe()
    tls = "tls: {cert_file: tls.pem, key_file: tls.pem}"
    path = config(USERS, more=f"server: {{port: 0, workers: 2, {tls}}}\n{ASKING}")
    path.with_name("tls.pem").write_text(SELF_SIGNED)
    arguments = ["--config", str(path), "--ready-fd", str(writing)]
    with subprocess.Popen([*COMMAND, "serve", *arguments], pass_fds=[writing]) as process:
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            line, is_closed = pipe.readline(), select.select([pipe], [], [], TIMEOUT)[0] != []
            process.terminate()
    assert (b'"https://' in line, is_closed, process.returncode) == (True, True, 0)


def test_ready_line_on_standard_error_leaves_it_open(config: Config) -> None:
    more = f"{ASKING}server: {{port: 0, workers: 2}}\n"
    with running(config(USERS, more=more), "--ready-fd", "2") as service:
        assert Client(service.port).by_input("@alice").status == 200
        service.stop()
    _, ready, *others, last = map(json.loads, service.read_log().splitlines())
    assert (ready["pid"], last["event"]) == (service.process.pid, "stopped")
    assert "request" in {each["event"] for each in others}


@contextmanager
def serve(
    path: Path, stdout: int, stderr: int, closed: Sequence[int] = ()
) -> Iterator[ForkedCommand]:
    """Run the service with these standard streams."""
    process = fork("serve", "--config", str(path), stdout=stdout, stderr=stderr, closed=closed)
    try:
        yield process
    finally:
        process.kill()


REDIRECTED: dict[str, tuple[str, str, list[int]]] = {
    ">/dev/full": ("/dev/full", "stderr", []),
    "2>&-": ("stdout", "stderr", [2]),
    "<&- >&- 2>&-": ("stdout", "stderr", [0, 1, 2]),
    ">/dev/full 2>/dev/full": ("/dev/full", "/dev/full", []),
}


@pytest.mark.parametrize("redirections", REDIRECTED)
def test_it_serves_where_nothing_can_be_printed(
    config: Config, tmp_path: Path, redirections: str
) -> None:
    """And writes nothing of its log into a file or socket that has the stream's descriptor."""
    port = free_port()
    path = config(USERS, more=f"server: {{port: {port}}}\n{ASKING}")
    *names, closed = REDIRECTED[redirections]
    files = [tmp_path / name for name in names]
    with (
        files[0].open("w") as stdout,
        files[1].open("w") as stderr,
        serve(path, stdout.fileno(), stderr.fileno(), closed) as process,
    ):
        eventually(lambda: listens(port))
        for _ in range(3):
            assert Client(port).by_input("@alice").status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
    written = "".join(each.read_text() for each in files if each.is_file())
    assert "Traceback" not in written
    assert "Exception ignored" not in written
    full = redirections == ">/dev/full"
    assert ("standard output cannot be written: No space left" in written) is full


def test_the_exit_code_is_set_if_nothing_can_be_printed(config: Config) -> None:
    """Also where the interpreter finds its standard streams so when it starts."""
    path = config("name: users, kind: yaml, path: gone.yaml", more=ANY_PORT)
    line = f"exec {shlex.join(COMMAND)} serve --config {shlex.quote(str(path))} 2>&-"
    assert subprocess.run(["/bin/sh", "-c", line], timeout=TIMEOUT, check=False).returncode == 3


def test_a_stalled_reader_of_the_log_stalls_no_response_and_no_stop(
    config: Config, tmp_path: Path
) -> None:
    port = free_port()
    path = config(USERS, more=f"server: {{port: {port}}}\n{ASKING}")
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with (tmp_path / "stdout").open("w") as stdout, serve(path, stdout.fileno(), writer) as process:
        os.close(writer)
        eventually(lambda: listens(port))
        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        assert len(Client(port).raw(request * 500, expect=500)) == 500
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
        os.close(reader)


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
    (folder / "config.yaml").write_text(WITH_SECRET)
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
