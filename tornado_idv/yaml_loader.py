"""A YAML loader that keeps scalars as text, and the line and column of every value.

Scalars keep their spelling: ``0012``, ``no`` and ``1e5`` are text. Constructs with a hidden effect
are errors: anchors, aliases, merge keys, tags and duplicate keys.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tornado_idv.errors import ConfigError, Problem

_MAX_DEPTH = 32
_HINTS = {
    "mapping values are not allowed in this context": (
        "; look at the indentation here and on the line above"
    ),
    "did not find expected ',' or '}'": "; a value with { } [ ] , # or ${...} needs quotes",
    "did not find expected ',' or ']'": "; a value with { } [ ] , # or ${...} needs quotes",
    "did not find expected key": (
        "; look at the indentation here and on the line above; a value that only begins with a "
        """quote needs quotes around all of it, like '"a b".c'"""
    ),
    "found character that cannot start any token": "; a value that begins with it needs quotes",
    "did not find expected alphabetic or numeric character": (
        "; a value that begins with * & or ! needs quotes"
    ),
}
"""Advice about the most frequent cause of an error, by the error message of the parser."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Mark(NamedTuple):
    """A position in a file. Lines and columns start at 1."""

    line: int
    column: int


class Text(str):
    """A scalar in its original spelling, with its position."""

    __slots__ = ("mark",)
    mark: Mark


class FileText(Text):
    """A scalar whose text was read from another file, by ``${file:path}``."""

    __slots__ = ("path",)
    path: Path


class Mapping(dict[Text, Any]):
    """A YAML mapping with its position. Its keys are `Text`. It must not be changed."""

    __slots__ = ("mark",)
    mark: Mark

    def key(self, name: str) -> Text | None:
        """Return the key with its position, or ``None`` for a missing key."""
        return next((key for key in self if key == name), None)


class Items(list[Any]):
    """A YAML sequence with the position of its start."""

    __slots__ = ("mark",)
    mark: Mark


def read(content: bytes, file: str, *, quotes_span_lines: bool = True) -> Any:
    """Load a YAML document as nested `Mapping`, `Items` and `Text`.

    An empty document gives an empty `Mapping`. ``file`` is the name in error messages. Without
    ``quotes_span_lines``, a quoted text must end on its first line, because in a long list, all
    lines between two stray quotes would be one text. Raises `ConfigError` with one problem.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()  # without the byte order mark
        raise ConfigError(Problem(file, *_end(before), "", "not UTF-8 text")) from None
    return _Reader(text, file, quotes_span_lines=quotes_span_lines).document()


def locate(root: Any, path: Sequence[int | str]) -> Mark:
    """Return the position of the value at ``path``, or of the closest existing parent."""
    mark: Mark = getattr(root, "mark", Mark(1, 1))
    for step in path:
        if isinstance(root, Mapping) and (key := root.key(str(step))) is not None:
            mark, root = key.mark, root[key]
        elif isinstance(root, Items) and isinstance(step, int) and step < len(root):
            root = root[step]
            mark = root.mark
        else:
            break
    return mark


class _Reader:
    def __init__(self, text: str, file: str, *, quotes_span_lines: bool) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
        self._text = text
        self._file = file
        self._quotes_span_lines = quotes_span_lines

    def document(self) -> Any:
        try:
            next(self._events)  # the start of the stream
            if isinstance(next(self._events), yaml.StreamEndEvent):  # no document starts
                empty = Mapping()
                empty.mark = Mark(1, 1)
                return empty
            root = self._value(next(self._events), 1)
            next(self._events)  # the end of the document
            end = next(self._events)
        except yaml.MarkedYAMLError as error:
            place = error.problem_mark
            mark = _mark(place) if place else Mark(1, 1)
            problem = str(error.problem).split(" handle ")[0]  # PyYAML itself quotes the handle
            reason = f"{problem}{_HINTS.get(problem, '')}"
            if place and "start any token" in reason and self._text.startswith("\t", place.index):
                reason = "a tab; YAML is indented with spaces"
            raise self._problem(mark, f"not valid YAML: {reason}") from None
        except yaml.YAMLError:
            match = yaml.reader.Reader.NON_PRINTABLE.search(self._text)
            mark = _end(self._text[: match.start()] if match else "")
            raise self._problem(mark, "not valid YAML: a control character") from None
        if not isinstance(end, yaml.StreamEndEvent):
            raise self._problem(_mark(end.start_mark), "a second document; only one is allowed")
        return root

    def _value(self, event: Any, depth: int) -> Any:
        mark, end = _mark(event.start_mark), event.end_mark
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._problem(mark, "anchors and aliases are refused; write the value out")
        if event.tag is not None:
            raise self._problem(mark, "tags are refused; every scalar is read as text")
        if depth > _MAX_DEPTH:
            raise self._problem(mark, f"nested deeper than {_MAX_DEPTH} levels")
        value: Text | Items | Mapping
        if isinstance(event, yaml.ScalarEvent):
            if event.style in {"'", '"'} and end.line >= mark.line and not self._quotes_span_lines:
                raise self._problem(mark, "a quote is not closed on its line")
            value = Text(event.value)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = Items()
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                value.append(self._value(event, depth + 1))
        else:
            value = self._mapping(depth)
        value.mark = mark
        return value

    def _mapping(self, depth: int) -> Mapping:
        mapping = Mapping()
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            if not isinstance(key, Text):
                raise self._problem(key.mark, "a member's name must be plain text")
            if key == "<<":
                raise self._problem(key.mark, "merge keys are refused; write the members out")
            if key in mapping:
                first = next(other for other in mapping if other == key).mark.line
                raise self._problem(key.mark, f"duplicate member, first on line {first}")
            mapping[key] = self._value(next(self._events), depth + 1)
        return mapping

    def _problem(self, mark: Mark, message: str) -> ConfigError:
        return ConfigError(Problem(self._file, *mark, "", message))


def _end(text: str) -> Mark:
    return Mark(text.count("\n") + 1, len(text) - text.rfind("\n"))


def _mark(mark: yaml.Mark) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)
