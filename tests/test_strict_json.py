"""Strict JSON: what is accepted, what is rejected, and that neither takes long."""

import json
import sys
import time
from contextlib import nullcontext, suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tornado_idv import strict_json

KIB = 1024
LIMIT = 0.1
"""Seconds of CPU time; linear work takes under 10 ms, the quadratic kind seconds."""
BRACKETS = st.recursive(
    st.text('[{}]"\\a'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('[{}]"\\a'), inner),
    max_leaves=20,
)
FRAGMENTS = st.lists(
    st.sampled_from(
        [*'[]{}",:\\1é \n-.', '\\"', "\\\\", "[],", '"a":', '{"":', "\\u0000", "1e9,", "9" * 99]
    ),
    min_size=1,
    max_size=6,
).map("".join)


def seconds_of_work(document: bytes, *, keep_numbers: bool) -> float:
    before = time.process_time()
    with suppress(ValueError):
        strict_json.loads(document, keep_numbers=keep_numbers)
    return time.process_time() - before


def filled(start: str, repeated: str, size: int) -> bytes:
    """A document of ``size`` bytes; characters cut in two are dropped."""
    times = size // len(repeated) + 1
    return (start + repeated * times).encode()[:size].decode(errors="ignore").encode()


@pytest.mark.slow
@given(start=st.sampled_from(["", "[" * 257, "[]," * 129, '{"a":' * 300, '"']), fragment=FRAGMENTS)
@example(start="[" * 200 + "]" * 200 + "[" * 57 + '"', fragment='\\"')
@settings(deadline=None, max_examples=40)
def test_any_document_is_decided_in_linear_time(start: str, fragment: str) -> None:
    document = filled(start, fragment, 64 * KIB)
    for keep_numbers in (False, True):
        work = (seconds_of_work(document, keep_numbers=keep_numbers) for _ in range(3))
        assert min(work) < LIMIT


@given(value=BRACKETS, depth=st.integers(0, 4))
def test_depth_counts_arrays_and_objects_outside_strings(value: object, depth: int) -> None:
    document = json.dumps(value, ensure_ascii=False)
    wrapped = "[" * (256 - depth) + document + "]" * (256 - depth)
    if depth_of(value) > depth:
        for text, limit in ((document, {"max_depth": depth}), (wrapped, {})):
            with pytest.raises(ValueError, match="nested too deep"):
                strict_json.loads(text, **limit)
    else:
        assert strict_json.loads(document, max_depth=depth) == value
        assert strict_json.loads(wrapped)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xef\xbb\xbf{}",
        b'{"a": "\xff"}',
        "{}".encode("utf-16"),
        b'{"a": NaN}',
        b"[-Infinity]",
        b"1e999",
        b"9" * 9000,
        b'[{"a": [{"b": 1, "b": 2}]}]',
        b"{} {}",
        b'{"a": ',
        b"\xc2\xa01",
    ],
    ids=repr,
)
def test_what_rfc_8259_does_not_allow_is_rejected(document: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 the text is the parser's
        strict_json.loads(document)


@pytest.mark.parametrize("number", ["0", "-0", "12.50", "1e999", "7" * 5000])
def test_numbers_are_kept_as_written_on_request(number: str) -> None:
    kept = strict_json.loads(f'[{number}, "{number}"]', keep_numbers=True)
    assert kept == [number, number]
    assert [type(each) for each in kept] == [strict_json.Number, str]
    assert strict_json.loads(b" [1.5, 2, null, true]\n") == [1.5, 2, None, True]
    for other in (f'{{"a": {number}, "a": 1}}', "[NaN]"):
        with pytest.raises(ValueError, match=r"duplicate member|not JSON"):
            strict_json.loads(other, keep_numbers=True)


def test_a_call_stack_that_is_nearly_full_is_no_recursion_error() -> None:
    """Callers do not expect that; from CPython 3.12 on, the parser does not use this stack."""
    nested_too_deep = pytest.raises(ValueError, match="nested too deep")

    def deeper() -> None:
        try:
            deeper()
        except RecursionError:
            outcome = nullcontext() if sys.version_info >= (3, 12) else nested_too_deep
            with outcome:
                strict_json.loads("[" * 256 + "]" * 256)
            raise LookupError from None

    with pytest.raises(LookupError):
        deeper()


@pytest.mark.parametrize(
    ("text", "expected"), [("a", True), ("\U0001f600", True), ("é\udc00", False)], ids=ascii
)
def test_lone_surrogate_is_not_unicode(text: str, *, expected: bool) -> None:
    assert strict_json.is_unicode(text) is expected
