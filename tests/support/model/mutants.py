"""Load the lookup core as fresh modules, with one seeded bug or none; no file is changed."""

from __future__ import annotations

import ast
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


@dataclass(frozen=True, slots=True)
class Change:
    """Code of a function and what replaces it: both an expression, or both statements.

    ``function`` is a qualified name. ``old`` must occur in it exactly once; the syntax trees are
    compared, so that comments, line breaks and moved lines make no difference.
    """

    function: str
    old: str
    new: str

    def apply(self, module: ast.Module) -> None:
        old, new = ast.parse(self.old).body, ast.parse(self.new).body
        function = _function(module, self.function)
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)), self.function
        match old, new:
            case [ast.Expr(value=expression)], [ast.Expr(value=replacement)]:
                replacer: _Replacer = _ExpressionReplacer(expression, replacement)
            case _:
                replacer = _StatementReplacer(old, new)
        replacer.visit(function)
        assert replacer.count == 1, f"found {replacer.count} times in {self.function}: {self.old}"


class Bug:
    """A named bug: changes to one module of the core.

    A search that begins with ``seed`` finds it soon; with any other it takes a second.
    """

    def __init__(self, name: str, module: str, *changes: Change, seed: int = 0) -> None:
        self.name = name
        self.module = module
        self.seed = seed
        self._changes = changes

    def put_in(self, source: str) -> ast.Module:
        """Return the syntax tree of the module's source with the bug in it."""
        tree = ast.parse(source)
        for change in self._changes:
            change.apply(tree)
        return tree


class _Replacer(ast.NodeTransformer):
    count = 0


class _ExpressionReplacer(_Replacer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._type = type(old)
        self._old = ast.dump(old)
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, self._type) and ast.dump(node) == self._old:
            self.count += 1
            return self._new
        return self.generic_visit(node)


class _StatementReplacer(_Replacer):
    def __init__(self, old: list[ast.stmt], new: list[ast.stmt]) -> None:
        self._types = [type(statement) for statement in old]
        self._old = [ast.dump(statement) for statement in old]
        self._new = new

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for _, block in ast.iter_fields(node):
            if isinstance(block, list):
                self._replace_in(block)
        return super().generic_visit(node)

    def _replace_in(self, block: list[ast.AST]) -> None:
        length = len(self._old)
        for start in reversed(range(len(block))):
            found = block[start : start + length]
            # The types first, since a dump takes long.
            same = [type(each) for each in found] == self._types
            if same and [ast.dump(each) for each in found] == self._old:
                self.count += 1
                block[start : start + length] = self._new


def _function(module: ast.Module, qualified_name: str) -> ast.AST:
    node: ast.AST = module
    for name in qualified_name.split("."):
        named = [
            child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == name
        ]
        assert len(named) == 1, f"{len(named)} definitions of {qualified_name}"
        node = named[0]
    return node


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
