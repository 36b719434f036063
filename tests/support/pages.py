"""Pages of the documentation, and their blocks of code."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def page(path: str) -> str:
    """Return the text of a page, by its path from the root of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Return what follows a heading, or its end, up to the next section."""
    _, found, rest = text.partition(f"{heading}\n")
    assert found, heading
    return rest.partition("\n## ")[0]


def all_blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the language and the code of each block."""
    for block in _BLOCK.finditer(text):
        yield text.count("\n", 0, block.start()) + 1, block[2], dedent(block[3])


def code_blocks(text: str, *languages: str) -> list[str]:
    """Return the blocks in these languages, also those that are indented in a list."""
    return [code for _, language, code in all_blocks(text) if language in languages]
