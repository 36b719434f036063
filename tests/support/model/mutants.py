"""The core as fresh modules, with one bug put in or none; the files stay as they are."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

_MODULES = ("circuit_breaker", "single_flight", "cache", "guard", "directory")
"""In the order in which they import each other."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A piece of a module's source and what stands there instead, maybe with ``more`` such."""

    name: str
    module: str
    right: str
    wrong: str
    more: tuple[tuple[str, str], ...] = ()

    def put_in(self, source: str) -> str:
        for right, wrong in ((self.right, self.wrong), *self.more):
            found = source.count(right)
            assert found == 1, f"{self.name}: found {found} times in {self.module}: {right}"
            source = source.replace(right, wrong)
        return source


@dataclass(frozen=True, slots=True)
class Core:
    """The modules under test, as others know them."""

    cache: Any
    guard: Any
    directory: Any

    def use_timer(self, timer: Any) -> None:
        """Gives the guards that a `Directory` makes this timer."""
        self.directory.Guard = partial(self.guard.Guard, timer=timer)


def core(bug: Bug | None = None) -> Core:
    """Loads the core, with a bug if one is given, apart from what others import."""
    with _modules_put_back():
        loaded = {name: _load(name, bug) for name in _MODULES}
    return Core(loaded["cache"], loaded["guard"], loaded["directory"])


def _load(name: str, bug: Bug | None) -> ModuleType:
    spec = importlib.util.find_spec(f"tornado_idv.lookup.{name}")
    assert spec is not None
    assert isinstance(spec.loader, importlib.abc.InspectLoader)
    source = spec.loader.get_source(spec.name)
    assert source is not None
    if bug is not None and bug.module == name:
        source = bug.put_in(source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(compile(source, spec.origin or name, "exec"), module.__dict__)
    return module


@contextmanager
def _modules_put_back() -> Iterator[None]:
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
