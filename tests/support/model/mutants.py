"""Load the lookup core as fresh modules, with one seeded bug or none; no file is changed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tornado_idv.model import Query

_MODULES = ("circuit_breaker", "cache", "single_flight", "guard", "chain", "directory")
"""In import order."""


class Bug:
    """A named bug: texts of one module of the core, each followed by what replaces it.

    A search that begins with ``seed`` finds it soon; with any other it takes a second.
    """

    def __init__(self, name: str, module: str, seed: int, *changes: str) -> None:
        self.name, self.module, self.seed = name, module, seed
        self._changes = tuple(zip(changes[::2], changes[1::2], strict=True))

    def put_in(self, source: str) -> str:
        """Return the module's source with the bug in it; each text must be in it once."""
        for old, new in self._changes:
            before, found, after = source.partition(old)
            assert found, f"{self.name}: not in {self.module}: {old}"
            assert old not in after, f"{self.name}: twice in {self.module}: {old}"
            line = before.rpartition("\n")[2]
            indent = line[: len(line) - len(line.lstrip())]
            source = before + new.replace("\n", "\n" + indent) + after
        return source


@dataclass(frozen=True, slots=True)
class Core:
    """The modules under test."""

    cache: Any
    guard: Any
    directory: Any

    def observe_guards(self, timer: Any, begin: Callable[[Query], object]) -> None:
        """Make a `Directory` create guards with this timer that report where a run begins."""

        class Observed(self.guard.Guard):  # type: ignore[misc,name-defined]
            def serves(self, query: Query) -> bool:
                begin(query)
                return bool(super().serves(query))

        self.directory.Guard = partial(Observed, timer=timer)


def core(bug: Bug | None = None) -> Core:
    """Load the core, with a bug if one is given, separate from the imported modules."""
    with _restored_modules():
        loaded = {name: _load(name, bug) for name in _MODULES}
    return Core(loaded["cache"], loaded["guard"], loaded["directory"])


def _load(name: str, bug: Bug | None) -> ModuleType:
    spec = importlib.util.find_spec(f"tornado_idv.lookup.{name}")
    assert spec is not None
    assert spec.origin is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if bug is None or bug.module != name:
        code = _compiled(spec.origin)
    else:
        source = Path(spec.origin).read_text(encoding="utf-8")
        code = compile(bug.put_in(source), spec.origin, "exec")
    exec(code, module.__dict__)
    return module


@cache
def _compiled(path: str) -> CodeType:
    """Compile a module without a bug once for all bugs of others."""
    return compile(Path(path).read_text(encoding="utf-8"), path, "exec")


@contextmanager
def _restored_modules() -> Iterator[None]:
    names = [f"tornado_idv.lookup.{name}" for name in _MODULES]
    before = {name: sys.modules.get(name) for name in names}
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
