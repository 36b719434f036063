"""A secret in a file of its own, which is read again after the file has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from pydantic import SecretStr

from tornado_idv.file_signature import FileSignature
from tornado_idv.files import read_text


class FileSecret(SecretStr):
    """A secret that follows its file.

    A file that is gone, empty or not text leaves the secret as it was: it may be about to be
    written. The file is looked at once a second at most; ``timer`` gives seconds.
    """

    check_interval: ClassVar[float] = 1.0

    def __init__(self, text: str, path: Path, timer: Callable[[], float] = time.monotonic) -> None:
        super().__init__(text)
        self._text = text
        self._path = path
        self._timer = timer
        self._checked_at = timer()
        self._signature: FileSignature | None = None

    def get_secret_value(self) -> str:
        """Return the secret as it is now."""
        now = self._timer()
        if now - self._checked_at >= self.check_interval:
            self._checked_at = now
            self._check()
        return self._text

    def _check(self) -> None:
        try:
            signature = FileSignature.of(self._path)
            if signature == self._signature:
                return
            text = read_text(self._path)
        except (OSError, ValueError):
            return
        if text:
            self._text, self._signature = text, signature
