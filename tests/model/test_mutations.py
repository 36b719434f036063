"""A seeded bug is located by syntax, and every one of them is found in the core."""

import ast
from pathlib import Path

import pytest

import tornado_idv.lookup
from support.model.mutants import Bug, Change
from support.model.mutations import BUGS

SOURCE = """
class Store:
    def get(self, now):
        # A comment.
        if (now
                >= self.end):  # another
            return None
        log(now); return self.value

    def put(self, now):
        return now >= self.end
"""


def spellings(module: str) -> tuple[str, str, str]:
    """A module's source, the same without comments, each statement on one line, and its tree."""
    source = Path(tornado_idv.lookup.__path__[0], f"{module}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    return source, ast.unparse(tree), ast.dump(tree)


# That the others are found as well is tested by the hunts for them.
LAST_OF_EACH_MODULE = {bug.module: bug for bug in BUGS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", LAST_OF_EACH_MODULE.values(), ids=lambda bug: bug.name.replace(" ", "-")
)
def test_bug_is_found_in_its_reformatted_module(bug: Bug) -> None:
    source, reformatted, tree = spellings(bug.module)
    assert ast.dump(bug.put_in(source)) == ast.dump(bug.put_in(reformatted)) != tree


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("now >= self.end", "now > self.end", "if now > self.end:"),
        ("log(now)", "None", "        None\n        return self.value"),
        ("log(now)\nreturn self.value", "pass", "        pass\n\n"),
        ("return None", "log(1)\nreturn 1", "            log(1)\n            return 1\n"),
    ],
)
def test_expressions_and_statements_of_one_function_are_replaced(
    old: str, new: str, expected: str
) -> None:
    mutated = ast.unparse(Bug("example", "store", Change("Store.get", old, new)).put_in(SOURCE))
    assert expected in mutated
    assert "return now >= self.end" in mutated


@pytest.mark.parametrize(
    ("function", "old", "message"),
    [
        ("Store.get", "now", "found 2 times in Store.get: now"),
        ("Store.get", "later", "found 0 times in Store.get: later"),
        ("Store.drop", "now", "0 definitions of Store.drop"),
    ],
)
def test_ambiguous_or_missing_code_is_an_error(function: str, old: str, message: str) -> None:
    bug = Bug("example", "store", Change(function, old, "None"))
    with pytest.raises(AssertionError, match=message):
        bug.put_in(SOURCE)
