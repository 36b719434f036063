"""Names, docstrings, comments, messages and documents are in plain technical English."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
AREAS = ["tornado_idv", "plugins", "benchmarks", "tests", "documents"]

INSTEAD = {
    r"anew": "again",
    r"at hand": "available, cached",
    r"be it": "whether",
    r"by way of": "through, with",
    r"(?:could not|cannot|can not) tell": "could not be determined",
    r"forestall(?:s|ed|ing)?": "pre-empt",
    r"forgets?": "discard, remove",
    r"(?:un)?foreseen": "expected, unexpected",
    r"heed(?:s|ed|ing)?": "respect, honour",
    r"in vain": "without effect",
    r"lest": "so that … not",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"nobody": "no user, no client",
    r"ourselves": "this service",
    r"somebody": "a user, a client",
    r"tells? (?:everything|how|nothing|of|that|what|whether|where|which|who|why)": "says, reports",
    r"to be had": "available",
    r"told": "reported, logged, called",
    r"vouch(?:es|ed)?": "verify, sign",
    r"whoever": "the client, the caller",
    r"whom(?:ever)?": "the user that …",
}
"""Words that no manual uses, and what to write instead."""

WORD = re.compile("|".join(rf"\b{word}\b" for word in INSTEAD).replace(" ", r"\s+"), re.IGNORECASE)
DATA = re.compile(r"(?:@|/m/|^)nobody\b|^Could not tell, try again$")
"""A nickname, which is also a user of the system, and a message of the contract."""

Text = tuple[int, str]
"""A line number and a text that starts there."""


@pytest.mark.parametrize("area", AREAS)
def test_plain_words_are_used(area: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word!r}: write {instead_of(word)}"
        for path in files(area)
        for line, word in words(path)
    ]
    assert not found, "\n".join([f"{len(found)} words to replace:", *found])


def test_each_kind_of_text_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(
        '"""Told."""\n'
        "def told_as(): ...\n"
        "x = 1  # anew\n"
        "log.info('to mend %s', x)\n"
        "raise ValueError(f'{x} whoever')\n"
        "record = {'in_vain': x}\n"
        "nickname = '@nobody'\n"
        "class C:\n"
        "    '''One\n"
        "    vouches.'''\n"
    )
    assert [line for line, _ in words(path)] == [1, 2, 3, 4, 5, 6, 10]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """A question says less than a statement, in as many words."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(ROOT)}:{text}"
        for area in ("tornado_idv", "plugins", "benchmarks")
        for path in files(area)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
        if re.match(r"(What|Whether|Where|How|Which)\b", text)
    ]
    assert not found, "\n".join(found)


def files(area: str) -> Iterator[Path]:
    if area == "documents":
        return chain(
            *(ROOT.glob(pattern) for pattern in ("*.md", "docs/**/*.md", "plugins/*/*.md"))
        )
    return (path for path in (ROOT / area).rglob("*.py") if path != Path(__file__))


def words(path: Path) -> list[tuple[int, str]]:
    content = path.read_text(encoding="utf-8")
    if not WORD.search(content.replace("_", " ")):
        return []
    texts = prose(content) if path.suffix == ".md" else texts_of_code(content)
    return sorted(
        (first + text.count("\n", 0, match.start()), " ".join(match[0].split()))
        for first, text in texts
        for match in WORD.finditer(text)
    )


def instead_of(word: str) -> str:
    return next(
        instead
        for pattern, instead in INSTEAD.items()
        if re.fullmatch(pattern, word, re.IGNORECASE)
    )


def prose(content: str) -> Iterator[Text]:
    in_code = False
    for number, line in enumerate(content.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, re.sub(r"`[^`]*`", "", line)


def texts_of_code(content: str) -> Iterator[Text]:
    """Yield names of functions and classes, comments and all strings, keys of data among them."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name.replace("_", " ")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, DATA.sub("", node.value.replace("_", " "))
    if any(WORD.search(line.partition("#")[2]) for line in content.splitlines()):
        for token in tokenize.generate_tokens(io.StringIO(content).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
