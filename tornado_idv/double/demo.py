"""The configuration of ``serve --demo``, and the implementation of ``serve --stop-on-eof``."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tornado_idv.config.load import ConfigFile
from tornado_idv.keys.token import issue

_CONFIG = """\
demo: true
profile_sites: [https://profiles.example]
server: {{docs: true, drain: {{timeout: 100ms}}}}
admin: {{port: 0}}
auth: {{keys: [{{id: double, token: {token}}}]}}
backends: [{{name: users, kind: yaml, path: {path}}}]
"""


@contextmanager
def demo_config(users: Path, port: int | None) -> Iterator[ConfigFile]:
    """Yield a temporary configuration with the users in the file ``users`` and a new key."""
    with TemporaryDirectory(prefix="tornado-idv-") as folder:
        file = Path(folder) / "config.yaml"
        path = json.dumps(str(users.absolute())).replace("${", "$${")
        file.write_text(_CONFIG.format(token=issue("double"), path=path), encoding="utf-8")
        yield ConfigFile.read(file, port)


def terminate_on_eof() -> None:
    """Start a thread. At the end of standard input, it sends SIGTERM to this process."""
    threading.Thread(target=_wait_for_eof, daemon=True).start()


def _wait_for_eof() -> None:
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
