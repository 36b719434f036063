"""The page of all public names and hooks: signatures and docstrings, as the source has them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import tornado_idv
from tornado_idv.interfaces import hookspecs

PAGE = Path(__file__).parent / "reference" / "plugin-names.md"
_HEAD = """\
# Signatures of the plugin API

All public names of `tornado_idv` and the hooks, with their signatures and docstrings;
[Plugin API](plugin-api.md) has the rules. This page is generated: `make docs` renews it.
"""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


_SHORT = 60
"""A value that is longer is left out."""


def page() -> str:
    """Return the page."""
    hooks = {name: "interfaces.hookspecs" for name in vars(hookspecs) if name.startswith("idv_")}
    names = {name: _module_of(name) for name in tornado_idv.__all__}
    return "".join([_HEAD, "\n## Hooks\n", *_sections(hooks), "\n## Names\n", *_sections(names)])


def _module_of(name: str) -> str:
    """Return the module of ``tornado_idv`` that defines a public name, or is it."""
    value = getattr(tornado_idv, name)
    if inspect.ismodule(value):
        return name
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__module__.removeprefix("tornado_idv.")
    return tornado_idv._MODULES.get(name, "interfaces.hookspecs")  # noqa: SLF001 - of the same project


def _sections(modules: dict[str, str]) -> Iterator[str]:
    for name, module in modules.items():
        source = _Source(module)
        nodes = [node for node in source.tree.body if name in (module, _name_of(node))]
        code = source.signatures(nodes).strip("\n")
        yield f"\n### {name}\n\n```python\n{code}\n```\n"


def _name_of(node: ast.stmt) -> str | None:
    """Return the name that a statement defines."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return target.id if isinstance(target, ast.Name) else None
    return None


def _is_public(node: ast.stmt) -> bool:
    name = _name_of(node)
    return name is not None and (name in {"__init__", "__call__"} or not name.startswith("_"))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Source:
    """The source of a module, and its texts, which ``ast.unparse`` would write on one line."""

    def __init__(self, module: str) -> None:
        self.text = inspect.getsource(import_module(f"tornado_idv.{module}"))
        self.tree = ast.parse(self.text)

    def signatures(self, nodes: list[ast.stmt]) -> str:
        """Return the code of public definitions without bodies, with the texts below them."""
        public = self._public(nodes, self.tree.body)
        code = ast.unparse(ast.Module(public, []))
        lines = self.text.splitlines()
        return re.sub(
            r"_text_(\d+)_(\d+)",
            lambda mark: "\n".join(lines[int(mark[1]) - 1 : int(mark[2])]).lstrip(),
            code,
        )

    def _public(self, nodes: list[ast.stmt], body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for node in filter(_is_public, nodes):
            found.append(self._without_body(node))
            below = body[body.index(node) + 1 :][:1]
            if isinstance(node, ast.Assign | ast.AnnAssign) and below and _is_text(below[0]):
                mark = ast.Name(f"_text_{below[0].lineno}_{below[0].end_lineno}")
                found.append(ast.Expr(mark))
        return found

    def _without_body(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, _FUNCTIONS):
            node.decorator_list = [each for each in node.decorator_list if not _is_hook(each)]
            node.body = node.body[:1] if _is_text(node.body[0]) else [_LEFT_OUT]
        elif isinstance(node, ast.ClassDef):
            text = node.body[:1] if _is_text(node.body[0]) else []
            node.body = [*text, *self._public(node.body, node.body)] or [_LEFT_OUT]
        elif (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and len(ast.unparse(node.value)) > _SHORT
        ):
            node.value = ast.Constant(...)
        return node


_LEFT_OUT = ast.Expr(ast.Constant(...))


def _is_hook(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "hookspec"
