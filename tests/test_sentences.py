"""The sentences of the product are short: few relative words, phrases and late conditions.

`make check` runs `python tests/test_sentences.py`: it prints the rates of each folder, and fails
above the maximum.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("tornado_idv", "plugins")
MOST = {"relative words": 20.0, "phrases": 1.5, "conditions behind": 1.8}
"""For each 1,000 words. Tornado has 14.6, 0.5 and 1.3 by the same rules, aiohttp 8.8, 0.2, 1.0."""
SIGNS = {
    "relative words": r"\b(?:which|that|whose|who[m]?|what|where)\b",
    "phrases": r"\b(?:beside|at once|by now|so many|so long|all the same|by itself|as far as|"
    r"(?:is|are) to be|is [t]old|gets no|of before|in time|of its own|says?|asked|for good|"
    r"as (?:it is|they are)|of that kind|no more than that)\b",
    "conditions behind": r"\bif (?:it|they|there is one|so|any|that is|given|one)\b|, if ",
}
_SIGNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in SIGNS.items()}
_HELP = ("help", "short_help", "description")
_FEW_WORDS = 300
"""Below this number a single word would decide: such modules count with their neighbours."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, helps and comments of a module, with their lines."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr | ast.keyword) else None
        if isinstance(node, ast.keyword) and node.arg not in _HELP:
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string:
            yield token.start[0], token.string


def signs(text: str) -> Counter[str]:
    """Return the number of words, and of each sign of a hard sentence."""
    found = Counter({name: len(sign.findall(text)) for name, sign in _SIGNS.items()})
    found["words"] = len(re.findall(r"[A-Za-z']+", text))
    return found


def counted() -> dict[str, Counter[str]]:
    """Return the signs in each folder; those of single modules are together."""
    folders: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for root in PRODUCT:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT).parts[:-1]
            depth = 3 if "features" in parts else 2
            for _, text in texts(path):
                folders["/".join(parts[:depth])] += signs(text)
    small = [name for name, each in folders.items() if each["words"] < _FEW_WORDS]
    for name in small:
        folders["small folders"] += folders.pop(name)
    return dict(folders)


def rates(counts: Counter[str]) -> dict[str, float]:
    return {name: 1000 * counts[name] / counts["words"] for name in MOST}


def hardest(number: int) -> list[str]:
    """Return the sentences with the most signs, and their places."""
    found = [
        (sum(signs(each)[name] for name in MOST), f"{path.relative_to(ROOT)}:{line}: {each}")
        for root in PRODUCT
        for path in (ROOT / root).rglob("*.py")
        for line, text in texts(path)
        for each in re.split(r"(?<=[.;:])\s+", " ".join(text.split()))
    ]
    return [text for _, text in sorted(found, reverse=True)[:number]]


def test_signs_are_found() -> None:
    text = "What is asked for, if there is one, is that which a server says."
    assert signs(text) == {"words": 14, "relative words": 3, "phrases": 2, "conditions behind": 1}


if __name__ == "__main__":
    too_hard = False
    for name, each in sorted(counted().items()):
        found = rates(each)
        too_hard |= any(rate > MOST[sign] for sign, rate in found.items())
        print(f"{name:36}", *(f"{rate:5.1f} {sign} " for sign, rate in found.items()))  # noqa: T201
    print(*hardest(10 if too_hard else 0), sep="\n")  # noqa: T201
    sys.exit(too_hard)
