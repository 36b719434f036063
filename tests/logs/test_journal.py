"""Lines for journald have their priority; what reads them elsewhere gets them as they are."""

import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from support.processes.forking import fork
from support.processes.loggers import put_back
from support.processes.process import TIMEOUT
from support.processes.service import write_config
from tornado_idv.logs.handlers import LogFormat, configure_direct_logging, configure_logging

CONFIG = f"""\
profile_sites: [https://profiles.example]
server: {{%s}}
auth: {{keys: [{{id: shop, sha256: {"0" * 64}}}]}}
backends: [{{name: users, kind: yaml, path: users.yaml}}]
"""
LEVELS = {"debug": "<7>", "info": "", "warning": "<4>", "error": "<3>", "critical": "<2>"}


@pytest.fixture
def loggers(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Loggers that write to the captured standard error, until the end of a test."""
    with put_back():
        yield


def stream_of(descriptor: int) -> str:
    """Return the value of ``JOURNAL_STREAM`` for a file that the service manager has passed."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


@pytest.mark.parametrize(
    ("direct", "log_format"),
    [(False, "json"), (True, "console")],
    ids=["one process", "supervisor"],
)
def test_line_begins_with_the_priority_of_its_level(
    loggers: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    log_format: LogFormat,
    *,
    direct: bool,
) -> None:
    """Also the further lines of an event: journald takes each for an entry."""
    # Not in a fixture: pytest captures in another file while those are set up.
    monkeypatch.setenv("JOURNAL_STREAM", stream_of(2))
    log = logging.getLogger("tornado_idv.test")
    with ExitStack() as stack:
        if direct:
            configure_direct_logging("debug", log_format)
        else:
            stack.enter_context(closing(configure_logging("debug", log_format)))
        # Tasks and threads of earlier tests may log as well.
        logging.getLogger().handlers[0].addFilter(logging.Filter(log.name))
        for level in LEVELS:
            log.log(logging.getLevelName(level.upper()), "%s\nsecond", level)
    lines = capfd.readouterr().err.splitlines()
    lines_each = 1 if log_format == "json" else 2
    expected = [prefix for prefix in LEVELS.values() for _ in range(lines_each)]
    assert [re.match(r"(<\d>)?", line)[0] for line in lines] == expected  # type: ignore[index]
    if log_format == "json":
        levels = [json.loads(re.sub(r"^<\d>", "", line))["level"] for line in lines]
        assert levels == [*LEVELS]


@pytest.mark.parametrize("stream", [None, "1:2"])
def test_other_streams_get_no_priority(
    loggers: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    stream: str | None,
) -> None:
    """As of a service whose unit appends standard error to a file."""
    if stream is None:
        monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    else:
        monkeypatch.setenv("JOURNAL_STREAM", stream)
    with closing(configure_logging("info", "json")):
        logging.getLogger("tornado_idv.test").error("failed")
    assert capfd.readouterr().err.startswith('{"timestamp"')


@pytest.mark.slow
@pytest.mark.parametrize("server", ["port: 0", "port: 0, workers: 2"])
def test_service_has_its_priorities_in_the_journal(tmp_path: Path, server: str) -> None:
    """Warnings of all processes, and the error of a start that fails."""
    config = write_config(tmp_path, CONFIG % f"host: 0.0.0.0, {server}")
    lines = serve_with_a_journal(config, until="plain HTTP")
    assert {line[:3] for line in lines if '"level":"warning"' in line} == {"<4>"}
    assert {line[0] for line in lines if '"level":"info"' in line} == {"{"}
    config.write_text(CONFIG % "prot: 0, x: 0")
    lines = serve_with_a_journal(config, until="server.x")
    assert [line.startswith(f"<3>{config}:2:") for line in lines] == [True, True]


def serve_with_a_journal(config: Path, until: str) -> list[str]:
    """Return the lines that the service manager reads up to a text, from a socket as it has."""
    ours, theirs = socket.socketpair()
    stream = stream_of(theirs.fileno())
    with (
        ours,
        theirs,
        ours.makefile(encoding="utf-8") as journal,
        Path(os.devnull).open("w") as null,
    ):
        process = fork(
            *("serve", "--config", str(config)),
            stdout=null.fileno(),
            stderr=theirs.fileno(),
            env={**os.environ, "JOURNAL_STREAM": stream},
        )
        try:
            theirs.close()
            lines: list[str] = []
            while until not in "".join(lines):
                lines.append(journal.readline())
                assert lines[-1], lines
        finally:
            process.kill()
            process.wait(TIMEOUT)
    return lines
