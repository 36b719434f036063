"""What is in the logs, how often, and what never is: here every secret is called tweety."""

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from select import PIPE_BUF
from typing import Any

import pytest

from support.processes.loggers import put_back
from support.processes.process import eventually, running
from support.processes.service import Client, make_database, serving, write_config
from tornado_idv.logs.handlers import (
    FoldingHandler,
    LogFormat,
    LogOutput,
    configure_direct_logging,
    configure_logging,
)
from tornado_idv.metrics.counters import Counters
from tornado_idv.web.access_log import LoggedRequest, record_response
from tornado_idv.web.response import Result

NICKNAME = "Tweety.Bird"
CARD = "8008135800813580081358"
KEY = "tweety-bird-from-elsewhere-0123456789"
OUR_CREDENTIAL = "tweety-bird-for-the-origin-0123456789"
SECRETS = ("tweety", CARD)

Written = tuple[str, int]

FIXTURE = f'users: [{{nickname: "@{NICKNAME}", card_number: "{CARD}", plan: Free}}]\n'
CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{port: 0}}
auth: {{keys: [{{id: caller, token: {KEY}}}, {{id: origin, token: {OUR_CREDENTIAL}}}]}}
cache: {{ttl: 0s, negative_ttl: 0s}}
"""
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


def _sqlite(folder: Path, _: ExitStack) -> tuple[str, Callable[[], object]]:
    users = folder / "users.db"
    make_database(users, (NICKNAME, CARD, "Free", None))
    return "kind: sqlite, path: users.db", lambda: users.write_bytes(b"tweety" * 2000)


def _upstream(folder: Path, stack: ExitStack) -> tuple[str, Callable[[], object]]:
    origin_folder = folder / "origin"
    origin_folder.mkdir()
    (origin_folder / "users.yaml").write_text(FIXTURE)
    origin = stack.enter_context(ExitStack())
    config = f"{CONFIG}backends: [{{name: users, kind: yaml, path: users.yaml}}]\n"
    url = origin.enter_context(serving(config, origin_folder)).url
    auth = f"auth: {{kind: bearer, token: {OUR_CREDENTIAL}}}"
    return f"kind: upstream, base_url: '{url}', {auth}", origin.close


PREPARE = {"sqlite": _sqlite, "upstream": _upstream}


def ask(client: Client, text: str) -> int:
    body = json.dumps({"input": text}).encode()
    return client.post("/api/v1/identify/url", body, AUTHORIZED).status


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "log_format", "ids"), [("sqlite", "console", "none"), ("upstream", "json", "hash")]
)
def test_no_secret_is_ever_logged(tmp_path: Path, kind: str, log_format: str, ids: str) -> None:
    """At the level debug, when all is well and when nothing is."""
    with ExitStack() as stack:
        backend, fail = PREPARE[kind](tmp_path, stack)
        logs = f"{{level: debug, format: {log_format}, ids: {ids}}}"
        config = f"{CONFIG}logging: {logs}\nbackends: [{{name: users, {backend}}}]\n"
        service = stack.enter_context(running(write_config(tmp_path, config)))
        client = Client(service.port)

        def fails_visibly() -> bool:
            ask(client, f"@{NICKNAME}")
            return "backend users: " in service.read_log()

        texts = [f"@{NICKNAME}", f"https://profiles.example/m/{NICKNAME}", "@tweety-2", "tweety"]
        assert [ask(client, text) for text in texts] == [200, 200, 404, 422]
        card = json.dumps({"card_number": CARD}).encode()
        assert client.post("/api/v1/identify/card", card, AUTHORIZED).status == 200
        fail()
        eventually(fails_visibly)
        assert ask(client, "@tweety-the-unknown") != 401
        service.stop()
    reported = service.read_log() + "".join(service.announced)
    assert "identify/url" in reported
    assert [secret for secret in SECRETS if secret in reported.lower()] == []
    assert "Traceback" not in reported
    if log_format == "json":
        assert all(json.loads(line)["event"] for line in service.read_log().splitlines())


class Logged:
    """Standard error, read back once the log writer has written all."""

    def __init__(self, output: LogOutput, stderr: pytest.CaptureFixture[str]) -> None:
        self.output = output
        self._stderr = stderr
        self._read = ""

    def getvalue(self) -> str:
        self.output.writer.flush()
        self._read += self._stderr.readouterr().err
        return self._read


Configure = Callable[[str, LogFormat], Logged]


@pytest.fixture
def logged(capfd: pytest.CaptureFixture[str]) -> Iterator[Configure]:
    """Configures logging; afterwards all is as it was."""
    outputs: list[LogOutput] = []

    def configure(level: str, log_format: LogFormat) -> Logged:
        outputs.append(configure_logging(level, log_format))
        return Logged(outputs[-1], capfd)

    with put_back():
        yield configure
    for output in outputs:
        output.close()


def test_a_json_line_holds_level_logger_time_and_fields(logged: Configure) -> None:
    stream = logged("info", "json")
    logging.getLogger("some.room").warning("what %s", "happened", extra={"status": 200})
    record = json.loads(stream.getvalue())
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "what happened",
        "level": "warning",
        "logger": "some.room",
        "status": 200,
    }


def test_what_is_less_severe_than_the_level_is_left_out(logged: Configure) -> None:
    stream = logged("warning", "json")
    logging.getLogger("some.room").info("it happened")
    logging.getLogger("aiohttp").info("it happened")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("name", ["aiosqlite", "asyncio", "aiohttp", "aiohttp.client"])
def test_libraries_are_not_debugged(logged: Configure, name: str) -> None:
    """Whatever level a plugin that uses the same library has left there."""
    logging.getLogger(name).setLevel(logging.NOTSET)
    stream = logged("debug", "json")
    logging.getLogger(name).debug("executing with %s", "tweety")
    assert stream.getvalue() == ""


def test_the_bytes_that_tornado_refuses_are_left_out(logged: Configure) -> None:
    stream = logged("debug", "json")
    logger = logging.getLogger("tornado.general")
    logger.info("Malformed HTTP message from %s: %s", "peer", "tweety")
    logger.error("Uncaught exception", exc_info=ValueError("tweety"))
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["event"] == "a request could not be read"
    assert second["event"] == "Uncaught exception"
    assert "tweety" not in stream.getvalue()


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("tornado.application", "unhandled exception:\n"),
        ("asyncio", "unhandled exception:\n"),
        ("some.room", "it failed\n"),
    ],
)
def test_exception_is_logged_without_its_message(logged: Configure, name: str, begin: str) -> None:
    """Of libraries, also without what they say of it."""
    stream = logged("debug", "json")
    text = "it failed" if name == "some.room" else "tweety failed"
    try:
        int(NICKNAME)
    except ValueError:
        logging.getLogger(name).exception(text)
    event = json.loads(stream.getvalue())["event"]
    assert event.startswith(begin)
    assert event.endswith("ValueError")
    assert event.count("test_handlers.py") == 1
    assert "tweety" not in stream.getvalue().lower()
    logging.getLogger(name).warning("as it was", exc_info=(None, None, None))
    assert "as it was" in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "is_there"), [("debug", True), ("info", True), ("warning", False)]
)
def test_there_is_an_access_log_up_to_the_level_info(
    logged: Configure,
    level: str,
    is_there: bool,  # noqa: FBT001
) -> None:
    assert (logged(level, "json").output.access is not None) is is_there


@pytest.mark.parametrize(
    ("log_format", "on_terminal", "for_machines"),
    [("json", True, True), ("console", False, False), ("auto", True, False), ("auto", False, True)],
)
async def test_access_lines_look_like_the_other_lines(
    logged: Configure,
    monkeypatch: pytest.MonkeyPatch,
    log_format: LogFormat,
    on_terminal: bool,  # noqa: FBT001
    for_machines: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    stream = logged("info", log_format)
    logging.getLogger("some.room").info("it happened", extra={"status": 200})
    stream.output.writer.flush()
    request = LoggedRequest("some-id", None, "POST", "none", "192.0.2.7", "caller", None)
    record_response(Counters(), stream.output.access, request, Result(200, b"{}"), 0.01)
    stream.output.close()
    other, *_, access = stream.getvalue().splitlines()
    assert ("it happened" in other, "some-id" in access) == (True, True)
    assert [other[0] == "{", access[0] == "{"] == [for_machines] * 2
    assert ("\x1b" in other) is (on_terminal and not for_machines)


class Unprintable:
    def __str__(self) -> str:
        raise TypeError("tweety")


@pytest.mark.parametrize("extra", [None, {"x": Unprintable()}], ids=["text", "field"])
def test_a_wrong_log_call_does_not_fail_its_caller(
    logged: Configure, extra: dict[str, object] | None
) -> None:
    """It is logged where the call is, without its arguments, which may be secret."""
    stream = logged("info", "json")
    logging.getLogger("some.room").info("%d of them", 1 if extra else "tweety", extra=extra)
    logging.getLogger("some.room").info("it goes on")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert re.match(r"a log call failed with TypeError: .*test_handlers.py:\d+$", first["event"])
    assert second["event"] == "it goes on"
    assert "tweety" not in stream.getvalue()


def test_repeated_errors_are_folded_and_others_are_not(logged: Configure) -> None:
    stream = logged("info", "json")
    logger = logging.getLogger("some.room")
    for number in range(4):
        logger.error("%s failed", "it", extra={"request_id": number})
        logger.info("it goes on")
        logging.getLogger("tornado_idv.service.reload").warning("rejected")
    stream.output.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    errors = [line for line in lines if line["level"] == "error"]
    assert [(line["event"], line["logger"]) for line in errors] == [("it failed", "some.room")] * 2
    assert [line.get("request_id") for line in errors] == [0, None]
    assert [line.get("repeated") for line in errors] == [None, 3]
    assert len(lines) == 10, "each result of a reload has its line"


def test_audit_lines_are_written_at_every_level(logged: Configure) -> None:
    stream = logged("error", "json")
    extra = {"key": "shop", "event": "other", "level": "other"}
    logging.getLogger("tornado_idv.audit").info("revoked", extra=extra)
    logging.getLogger("tornado_idv.other").warning("left out")
    record = json.loads(stream.getvalue())
    assert (record["event"], record["key"], record["level"]) == ("revoked", "shop", "info")


def test_a_pipe_that_another_process_made_non_blocking_loses_no_line(
    logged: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    monkeypatch.setattr("tornado_idv.logs.handlers._STDERR", writer)
    text = "x" * 200_000  # more than a pipe holds
    output = logged("info", "json").output
    logging.getLogger("some.room").info(text)
    with os.fdopen(reader, encoding="ascii") as pipe:
        assert json.loads(pipe.readline())["event"] == text
    output.close()
    os.close(writer)
    assert output.writer.dropped == 0


def test_lost_lines_are_reported_in_the_format_of_the_log(
    logged: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = logged("info", "json")
    with Path("/dev/full").open("wb") as full, monkeypatch.context() as patch:
        patch.setattr("tornado_idv.logs.handlers._STDERR", full.fileno())
        for _ in range(2):
            logging.getLogger("some.room").info("lost")
            stream.output.writer.flush()
    logging.getLogger("some.room").info("written")
    written, report = map(json.loads, stream.getvalue().splitlines())
    assert (written["event"], report["level"]) == ("written", "warning")
    assert report["event"].startswith("2 log lines dropped: ")


def writes_to_stderr(monkeypatch: pytest.MonkeyPatch, text: str, *, shared: bool) -> list[bytes]:
    """Return what each write takes, where this text is to be written."""
    written: list[bytes] = []
    write_to = os.write

    def write(descriptor: int, data: memoryview) -> int:
        if descriptor != 2:
            return write_to(descriptor, data)
        written.append(bytes(data))
        return len(data)

    monkeypatch.setattr("os.write", write)
    with put_back():
        output = configure_logging("info", "json", shared=shared)
        output.writer.put(text)
        output.close()
    assert b"".join(written) == text.encode()
    return written


def test_finalizer_that_logs_waits_for_no_thread_that_logs() -> None:
    """The garbage collector may run it in the writer's thread, during a tick."""
    with put_back():
        output = configure_logging("info", "json")
        other = threading.Thread(target=logging.error, args=["other"], daemon=True)
        is_logged = threading.Event()

        def finalize() -> float:
            if other.ident is None:
                other.start()
                other.join(0.5)  # until it waits for the lock
                logging.getLogger("x").error("finalizer")
                is_logged.set()
            return 0.0

        output.handler._clock = finalize  # noqa: SLF001 - chance and time of the test
        assert is_logged.wait(10)
        output.close()


@pytest.mark.parametrize("length", [10, 300, 3000, 5000])
def test_lines_of_several_processes_are_written_whole(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write to a pipe is whole lines of at most PIPE_BUF bytes, or one longer line."""
    text = "".join(f"{i % 10}" * length + "\n" for i in range(50))
    written = writes_to_stderr(monkeypatch, text, shared=True)
    assert all(each.endswith(b"\n") for each in written)
    assert all(len(each) <= PIPE_BUF or each.count(b"\n") == 1 for each in written)


def test_lines_of_a_single_process_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(writes_to_stderr(monkeypatch, "a line\n" * 10_000, shared=False)) == 1


def test_direct_logging_loses_a_line_rather_than_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr("tornado_idv.logs.handlers._STDERR", writer)
    threads = threading.active_count()
    with put_back():
        configure_direct_logging("info", "json")
        for i in range(1000):
            logging.getLogger("x").warning("line %d %s", i, "x" * 650)
        lines = os.read(reader, 1024 * 1024).splitlines()
        os.close(reader)
        logging.getLogger("x").warning("nobody reads this")
    assert 0 < len(lines) < 1000
    assert re.fullmatch(r"line 0 x{593} ... \(cut\)", json.loads(lines[0])["event"])
    assert threading.active_count() == threads
    os.close(writer)


class Harness:
    """A handler with a clock that a test advances; ``written`` are events and their counts."""

    def __init__(self) -> None:
        self.now = 100.0
        self.written: list[Written] = []
        self.handler = FoldingHandler(self._write, lambda: self.now)

    def _write(self, fields: dict[str, Any]) -> None:
        self.written.append((fields["event"], fields.get("repeated", 0)))

    def log(self, event: str = "failed", *, times: int = 1, logger: str = "a") -> None:
        for _ in range(times):
            self.handler.handle(logging.LogRecord(logger, logging.WARNING, "", 0, event, (), None))

    def advance(self, seconds: float) -> list[Written]:
        """Let time pass, and return what is written in it or was before."""
        for _ in range(int(10 * seconds)):
            self.now = round(self.now + 0.1, 1)
            self.handler.expire()
        written, self.written = self.written, []
        return written


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_first_error_is_written_at_once_and_repetitions_after_10_s(harness: Harness) -> None:
    harness.log(times=4)
    assert harness.advance(9.9) == [("failed", 0)]
    assert harness.advance(0.2) == [("failed", 3)]
    assert harness.advance(100) == []


def test_lasting_error_is_one_line_per_10_s(harness: Harness) -> None:
    harness.log(times=2)
    written = []
    for _ in range(59):
        written += harness.advance(1)
        harness.log()
    assert written == [("failed", 0), *[("failed", 10)] * 5]
    assert harness.advance(11) == [("failed", 10)]


def test_single_errors_far_apart_are_each_written(harness: Harness) -> None:
    for _ in range(3):
        harness.log()
        assert harness.advance(10.1) == [("failed", 0)]


def test_different_texts_and_loggers_are_not_folded(harness: Harness) -> None:
    harness.log("one")
    harness.log("two")
    harness.log("one", logger="b")
    assert harness.advance(0) == [("one", 0), ("two", 0), ("one", 0)]


def test_each_error_has_its_own_interval(harness: Harness) -> None:
    harness.log("one", times=2)
    assert harness.advance(6) == [("one", 0)]
    harness.log("two", times=3)
    assert harness.advance(5) == [("two", 0), ("one", 1)]
    assert harness.advance(5) == [("two", 2)]


def test_repetitions_are_written_at_close(harness: Harness) -> None:
    harness.log(times=3)
    harness.handler.end_folds()
    assert harness.advance(100) == [("failed", 0), ("failed", 2)]


def test_memory_is_bounded_however_many_errors_there_are(harness: Harness) -> None:
    """The oldest is written early, with its count."""
    harness.log("failed", times=3)
    for number in range(1000):
        harness.log(f"error {number}")
    written = harness.advance(0)
    assert len(written) == 1002
    assert ("failed", 2) in written
    for number in reversed(range(1000)):
        harness.log(f"error {number}")
    assert harness.advance(0)[:2] == [("error 744", 1), ("error 743", 0)]  # 256 were known
