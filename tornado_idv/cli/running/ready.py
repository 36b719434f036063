"""Announcement of a service to the program that started it, and configuration of a test double."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tornado_idv.config.load import ConfigFile
from tornado_idv.keys.token import issue

_STANDARD_ERROR = 2
_CONFIG = """\
demo: true
profile_sites: [https://profiles.example]
server: {{docs: true, drain: {{timeout: 100ms}}}}
admin: {{port: 0}}
auth: {{keys: [{{id: double, token: {token}}}]}}
backends: [{{name: users, kind: yaml, path: {path}}}]
"""


@contextmanager
def double_config(fixture: Path, port: int | None) -> Iterator[ConfigFile]:
    """Yield a configuration that serves a fixture with a new key; raises `StartError`."""
    with TemporaryDirectory(prefix="tornado-idv-") as folder:
        file = Path(folder) / "config.yaml"
        path = json.dumps(str(fixture.absolute())).replace("${", "$${")
        file.write_text(_CONFIG.format(token=issue("double"), path=path), encoding="utf-8")
        yield ConfigFile.read(file, port)


def terminate_on_eof() -> None:
    """Send this process SIGTERM at the end of standard input; blocks until then."""
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def write_ready(record: Mapping[str, object], fd: int | None, file: Path | None) -> None:
    """Write one line of JSON for the program that started this one; raises `OSError`.

    It may hold a key, so that others cannot read the file, which appears when it is complete.
    """
    line = json.dumps(record) + "\n"
    if fd is not None:
        with os.fdopen(fd, "w", closefd=fd > _STANDARD_ERROR) as pipe:
            pipe.write(line)
    if file is not None:
        partial = file.with_name(f"{file.name}.{os.getpid()}")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(line)
        partial.replace(file)
