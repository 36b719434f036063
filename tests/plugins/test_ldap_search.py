"""The evidence for "not found": what else the filter finds, without a server."""

from __future__ import annotations

import pytest

from support.databases.ldap_server import require
from support.fakes.clock_and_backends import LoopClock
from tornado_idv import Broken

require()

from idv_ldap.search import Search  # noqa: E402

ANY = "(objectClass=*)"
ENTRY = "(|(!(objectClass=organizationalUnit))(hasSubordinates=TRUE))"
ALICE, BOB = {"uid": [b"alice"]}, {"uid": [b"bob"]}
NO_ENTRY = r"the filter finds no entry for any value \(\(uid=\*\)\)"


class Directory:
    """A connection to entries, each by the filters that find it."""

    def __init__(self, found: dict[str, dict[str, list[bytes]]]) -> None:
        self.found = found
        self.lost: Exception | None = None
        self.searches = 0

    async def search(self, filter_: str, _attributes: list[str]) -> list[dict[str, list[bytes]]]:
        self.searches += 1
        return [self.found[filter_]] if filter_ in self.found else []

    async def first(
        self, filter_: str, _attribute: str | None = None, scope: str = ""
    ) -> dict[str, list[bytes]] | None:
        assert (scope == "subtree") == (filter_ in {ANY, ENTRY})
        return next(iter(await self.search(filter_, [])), None)

    def lose(self, failure: Exception) -> None:
        self.lost = failure


FOUND: dict[str, tuple[dict[str, dict[str, list[bytes]]], str | None]] = {
    "another entry": ({"(uid=*)": BOB, "(uid=bob)": BOB}, None),
    "another entry, which may not be read": ({"(uid=*)": {}}, None),
    "an empty tree": ({ANY: {}}, None),
    "no entry that the filter finds": ({ANY: {}, ENTRY: {}}, NO_ENTRY),
    "nothing that may be read": ({}, NO_ENTRY),
    "an index that is not filled": ({"(uid=*)": BOB}, "the server's index lacks a stored uid"),
}


@pytest.mark.parametrize(("found", "failure"), FOUND.values(), ids=FOUND)
async def test_not_found_needs_evidence(
    found: dict[str, dict[str, list[bytes]]], failure: str | None
) -> None:
    directory, search = Directory(found), Search("(uid={nickname})", ["uid"])
    if failure is None:
        assert await search.find(directory, "alice") is None
    else:
        with pytest.raises(Broken, match=failure):
            await search.find(directory, "alice")
    assert (directory.lost is not None) == bool(failure and "index" in failure)


async def test_evidence_is_of_a_second_and_a_tree_that_had_entries_is_not_empty() -> None:
    directory = Directory({"(uid=alice)": ALICE, "(uid=bob)": BOB})
    search = Search("(uid={nickname})", ["uid"])
    assert await search.find(directory, "bob") == BOB
    del directory.found["(uid=alice)"]
    assert [await search.find(directory, "alice") for _ in range(2)] == [None, None]
    assert directory.searches == 3  # none of them for evidence
    clock = LoopClock()
    clock.forward(1.0)
    assert await search.find(directory, "alice") is None
    assert directory.searches == 5
    directory.found = {ANY: {}}
    clock.forward(1.0)
    with pytest.raises(Broken, match=NO_ENTRY):
        await search.find(directory, "alice")
