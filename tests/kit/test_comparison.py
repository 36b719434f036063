"""How the outcomes of a lookup in two sources are classified."""

import pytest

from tornado_idv.errors import Broken, LookupFailed, Unavailable, Untrusted
from tornado_idv.identifiers import Identifiers, ProfileSite
from tornado_idv.kit.comparison import compare
from tornado_idv.model import User

ALICE = User("Free", "4000", "alice")
IDENTIFIERS = Identifiers([ProfileSite.parse("https://profiles.example")])
DOWN, WRONG, LOST = Unavailable("down"), Broken("two users"), Untrusted("the canary is lost")


@pytest.mark.parametrize(
    ("source", "target", "result", "user"),
    [
        (ALICE, ALICE, "match", ALICE),
        (None, None, "match", None),
        (ALICE, None, "missing", ALICE),
        (None, ALICE, "extra", ALICE),
        (WRONG, ALICE, "source_failed", ALICE),
        (DOWN, WRONG, "source_failed", None),
        (DOWN, LOST, "source_failed", None),
        (ALICE, WRONG, "target_failed", ALICE),
        (LOST, DOWN, "target_failed", None),
        (ALICE, LOST, "unverified", ALICE),
        (LOST, None, "unverified", None),
        (LOST, LOST, "unverified", None),
    ],
)
def test_failure_outranks_what_is_unverified_and_that_a_difference(
    source: User | LookupFailed | None,
    target: User | LookupFailed | None,
    result: str,
    user: User | None,
) -> None:
    found = compare(source, target, IDENTIFIERS.differences)
    assert (found.result, found.fields, found.user) == (result, (), user)


def test_fields_that_differ_are_those_of_responses() -> None:
    other = User("Pro", "4001", "alice", "https://profiles.example/m/alice")
    found = compare(ALICE, other, IDENTIFIERS.differences)
    assert (found.result, found.fields, found.user) == ("differs", ("card_number", "plan"), ALICE)
    assert "alice" not in repr(found)
    assert "4000" not in repr(found)
