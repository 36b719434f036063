"""Sessions of psql that stay open: a new process for each script takes longer than the script."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

_END = "-- end of the script --"


class Psql:
    """One session, which is opened when it is needed, and again after an error."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = [*command, "-qAtX", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        self._process: subprocess.Popen[str] | None = None

    def run(self, script: str) -> str:
        """Run SQL and return its rows, fields separated by |; an error ends the session."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{script}\n;\n\\echo {_END}\n")
        process.stdin.flush()
        rows: list[str] = []
        for line in process.stdout:
            if line.rstrip() == _END:
                return "".join(rows).strip()
            rows.append(line)
        raise AssertionError(self.close())

    def close(self) -> str:
        """End the session, and return its errors."""
        if self._process is None:
            return ""
        _, errors = self._process.communicate(timeout=30)
        self._process = None
        return errors
