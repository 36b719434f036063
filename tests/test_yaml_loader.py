"""YAML read as text: nothing is typed, nothing surprising is let in, everything has a place."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tornado_idv import yaml_loader
from tornado_idv.errors import ConfigError
from tornado_idv.yaml_loader import Items, Mapping, Text, locate, read

FILE = "users.yaml"


def problem(content: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read(content, FILE)
    (reported,) = caught.value.problems
    return str(reported)


@pytest.mark.parametrize(
    "text", ["0012", "no", "yes", "null", "~", "1e5", "40:00", "2020-01-01", "="]
)
def test_a_scalar_is_text(text: str) -> None:
    assert read(f"a: {text}".encode(), FILE) == {"a": text}


def test_quotes_and_block_scalars_follow_yaml() -> None:
    content = b"a: \"\\u00fc\\n\"\nb: 'it''s'\nc: |\n  one\n  two\nd:\n"
    assert read(content, FILE) == {"a": "\u00fc\n", "b": "it's", "c": "one\ntwo\n", "d": ""}


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# nothing\n", b"\xef\xbb\xbf"], ids=repr)
def test_an_empty_document_is_an_empty_mapping(content: bytes) -> None:
    empty = read(content, FILE)
    assert isinstance(empty, Mapping)
    assert not empty
    assert empty.mark == (1, 1)


@pytest.mark.parametrize("content", [b"---\n", b"---\n...\n", b"''"], ids=repr)
def test_a_document_of_an_empty_scalar_is_empty_text(content: bytes) -> None:
    assert read(content, FILE) == Text("")


@pytest.mark.parametrize(("start", "shift"), [(b"", 0), (b"\xef\xbb\xbf", 1)], ids=["", "mark"])
def test_every_value_has_its_position(start: bytes, shift: int) -> None:
    """A byte order mark counts as the first column of its line."""
    text = "\u00fc: 1\nusers:\n  - {nickname: alice, plan: Fr\u00e9e}\n"
    root = read(start + text.encode(), FILE)
    user = root["users"][0]
    key = next(key for key in user if key == "plan")
    assert isinstance(root["users"], Items)
    assert root["\u00fc"].mark == (1, 4)
    assert [each.mark for each in (root["users"], user, key, user["plan"])] == [
        (3, 3),
        (3, 5),
        (3, 23),
        (3, 29),
    ]


NO_ALIAS = "anchors and aliases are refused; write the value out"
NOT_VALID = "not valid YAML: "
INDENTATION = "; look at the indentation here and on the line above"
QUOTES = "; a value with { } [ ] , # or ${...} needs quotes"
REFUSED = {
    "anchor": (b"a: &x 1", f"1:4: {NO_ALIAS}"),
    "anchor on a name": (b"&x a: 1", f"1:1: {NO_ALIAS}"),
    "alias": (b"a: 1\nb: *x", f"2:4: {NO_ALIAS}"),
    "merge key": (b"a:\n  <<: {b: c}", "2:3: merge keys are refused; write the members out"),
    "tag": (b"a: !!str 1", "1:4: tags are refused; every scalar is read as text"),
    "tag of none": (b"a: ! 1", "1:4: tags are refused"),
    "tag of a mapping": (b"a: !!omap {b: 1}", "1:4: tags are refused"),
    "member twice": (b"a: 1\nb: 2\na: 3", "3:1: duplicate member, first on line 1"),
    "member twice in a flow": (b'{a: 1,\n "a": 2}', "2:2: duplicate member, first on line 1"),
    "list as a name": (b"? [a]\n: b", "1:3: a member's name must be plain text"),
    "second document": (b"a: 1\n---\nb: 2", "2:1: a second document; only one is allowed"),
    "33 levels": (b"[" * 33 + b"]" * 33, "1:33: nested deeper than 32 levels"),
    "no end of a list": (b"a: [1, 2", f"2:1: {NOT_VALID}"),
    "no end of a quote": (b"a: 'b", f"1:6: {NOT_VALID}"),
    "tab": (b"a:\n\tb: c", f"2:1: {NOT_VALID}a tab; YAML is indented with spaces"),
    "tab after an old line end": (b"\r[\t\r\t", NOT_VALID),
    "a sign": (b"a: b\tc\nd: @e\t", f"2:4: {NOT_VALID}found character that cannot start"),
    "a colon too many": (
        b"a: b: c",
        f"1:5: {NOT_VALID}mapping values are not allowed in this context{INDENTATION}",
    ),
    "a brace unquoted": (
        b"a: {b: [c]d}",
        f"1:11: {NOT_VALID}did not find expected ',' or '}}'{QUOTES}",
    ),
    "a bracket unquoted": (
        b"a: [b: {c}d]",
        f"1:11: {NOT_VALID}did not find expected ',' or ']'{QUOTES}",
    ),
    "control character": (b"a: b\0", f"1:5: {NOT_VALID}a control character"),
    "not UTF-8": (b"a: 1\nb: \xff", "2:4: not UTF-8 text"),
    "not UTF-8 after wide letters": ("\u00fc\u00fc: ".encode() + b"\xff", "1:5: not UTF-8 text"),
    "not UTF-8 after a mark": (b"\xef\xbb\xbfa\nb: \xff", "2:4: not UTF-8 text"),
}


@pytest.mark.parametrize(("content", "reported"), REFUSED.values(), ids=REFUSED)
def test_misleading_syntax_is_rejected_at_its_position(content: bytes, reported: str) -> None:
    message = problem(content)
    assert message.startswith(f"{FILE}:")
    assert reported in message


@pytest.mark.parametrize("parser", ["CSafeLoader", "SafeLoader"])
def test_messages_do_not_repeat_values(monkeypatch: pytest.MonkeyPatch, parser: str) -> None:
    monkeypatch.setattr(yaml_loader, "_Loader", getattr(yaml, parser))
    for content in (
        *(b"alice: &alice 1", b"alice: 1\nalice: 2", b"a: 'alice", b"alice: \xff"),
        *(b"a: !alice!b", b"%TAG !alice! b\n%TAG !alice! b\n---\n"),
    ):
        assert "alice" not in problem(content)


@pytest.mark.parametrize(
    "content",
    [b"[" * 200_000, b"{a: " * 200_000, b"- " * 200_000, b"? " * 200_000],
    ids=["lists", "mappings", "dashes", "names"],
)
def test_deep_nesting_is_rejected(content: bytes) -> None:
    """Libyaml 0.2.6, in PyYAML 6.0.4, has a limit of its own and looks a thousand levels ahead."""
    message = problem(content)
    assert "nested deeper" in message or "maximum nesting depth" in message
    assert read(b"[" * 31 + b"a" + b"]" * 31, FILE)


YAML_LIKE = "aab::--[]{},,&*<<!?|>'\"#%@\\. \n\n  \t\r\0\u00fc\u0085\u2028\ufeff"


@given(st.binary() | st.text(YAML_LIKE).map(str.encode))
def test_any_bytes_are_a_document_or_a_problem_with_a_position(content: bytes) -> None:
    try:
        root = read(content, FILE)
    except ConfigError as error:
        (reported,) = error.problems
        assert reported.file == FILE
        assert reported.message
        assert (reported.line, reported.column) >= (1, 1)
    else:
        assert_marked(root)


@given(st.text("abc\n\u00fc \U0001f600"), st.characters(codec="utf-8"), st.text("abc\n\u00fc"))
def test_invalid_yaml_is_reported_at_its_position(before: str, character: str, after: str) -> None:
    """Whatever YAML's own grammar allows is another matter, and never said to be a control."""
    text = f"# {before}{character}{after}".replace("\n", "\n# ")
    allowed = character in "\t\n\r\x85" or (
        "\x20" <= character <= "\ufffd" and not "\x7f" <= character <= "\x9f"
    )
    if allowed or character > "\uffff":
        assert "control" not in str(outcome(text))
    else:
        lines = text[: text.index(character)].split("\n")
        place = f"{FILE}:{len(lines)}:{len(lines[-1]) + 1}"
        assert problem(text.encode()) == f"{place}: not valid YAML: a control character"


def assert_marked(value: Any) -> None:
    assert isinstance(value, (Text, Items, Mapping))
    assert min(value.mark) >= 1
    for child in value if not isinstance(value, Text) else ():
        assert_marked(child)
    for child in value.values() if isinstance(value, Mapping) else ():
        assert_marked(child)


def outcome(text: str) -> Any:
    """A document, None for what YAML does not allow."""
    try:
        return read(text.encode(), FILE)
    except ConfigError:
        return None


DOCUMENT = read(b"users:\n  - nickname: alice\n    tags: [a, b]\n", FILE)


@pytest.mark.parametrize(
    ("path", "mark"),
    [
        ([], (1, 1)),
        (["users", 0], (2, 5)),
        (["users", 0, "tags"], (3, 5)),
        (["users", 0, "tags", 1], (3, 15)),
        (["users", 0, "tags", 2], (3, 5)),
        (["users", 0, "tags", 1, "x"], (3, 15)),
        (["users", 0, "missing"], (2, 5)),
        (["users", "name"], (1, 1)),
        (["missing", 0], (1, 1)),
    ],
    ids=str,
)
def test_locate_returns_the_closest_position(path: list[int | str], mark: tuple[int, int]) -> None:
    assert locate(DOCUMENT, path) == mark
    assert locate({}, path) == (1, 1)
