"""Files of new servers, which take seconds of CPU time to make, kept from one run to the next."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_KEPT = Path(__file__).parents[3] / ".server_cache"


def make_or_copy(folder: Path, made_of: object, make: Callable[[], object]) -> None:
    """Make a folder, or copy one that was made of the same; ``made_of`` is all that decides."""
    key = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
    kept = _KEPT / key
    if kept.exists():
        _copy(kept, folder)
        return
    make()
    _KEPT.mkdir(exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=_KEPT))
    _copy(folder, temporary / key)
    with suppress(OSError):  # another process was faster
        (temporary / key).rename(kept)
    shutil.rmtree(temporary)


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)
