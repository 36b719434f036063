"""Only what Tornado documents is used, so that any release of the major version will do."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tornado import httputil, ioloop, netutil, web

SOURCE = Path("tornado_idv")
DOCUMENTED = {each.__name__: each for each in (httputil, ioloop, netutil, web)}
PRIVATE = {
    name
    for each in (web.Application, web.RequestHandler, httputil.HTTPServerRequest, ioloop.IOLoop)
    for name in (*vars(each), *vars(each).get("__annotations__", ()))
    if name.startswith("_") and not name.startswith("__")
}
"""Names of attributes that belong to Tornado alone."""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "from tornado." in text or "import tornado" in text:
            yield path, ast.parse(text)


def handlers(base: type[web.RequestHandler] = web.RequestHandler) -> Iterator[type]:
    for each in base.__subclasses__():
        if each.__module__.startswith("tornado_idv."):
            yield each
        yield from handlers(each)


def test_documented_modules_and_names_are_imported_and_no_private_attribute_is_used() -> None:
    assert "_execute" in PRIVATE
    found = 0
    for path, node in ((path, node) for path, tree in modules() for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tornado."):
            found += 1
            module = DOCUMENTED.get(node.module or "")
            assert module is not None, f"{path}: {node.module}"
            for name in node.names:
                assert not name.name.startswith("_"), path
                assert getattr(module, name.name).__doc__, f"{path}: {name.name}"
        assert not isinstance(node, ast.Attribute) or node.attr not in PRIVATE, path
    assert found > 5


@pytest.mark.parametrize("module", ["web.app", "admin.listener", "features.status.handlers"])
def test_handlers_override_only_documented_methods(module: str) -> None:
    importlib.import_module(f"tornado_idv.{module}")
    methods = {"initialize", *map(str.lower, web.RequestHandler.SUPPORTED_METHODS)}
    found = 0
    for handler in handlers():
        for name in vars(handler):
            if name == "_stream_request_body":  # set by the documented decorator
                continue
            if hasattr(web.RequestHandler, name) and not name.startswith("__"):
                found += 1
                documented = name in methods or getattr(web.RequestHandler, name).__doc__
                assert documented, f"{handler.__name__}.{name}"
                assert not name.startswith("_"), f"{handler.__name__}.{name}"
    assert found > 10
