"""Tests for plugin authors: the suite that every backend passes.

Import it in tests only: it needs pytest and pytest-tornasync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tornado_idv.backend import AnyBackend
from tornado_idv.errors import LookupFailed, StartError, Unavailable
from tornado_idv.model import BackendResult, ByCard, ByNickname, Query, User
from tornado_idv.registry import open_backends

ALICE = User(plan="Free", card_number="4000123412341234", nickname="alice")
BOB = User(
    plan="Pro Ünïcode",
    card_number="0012345670",
    nickname="Bob_the.builder-9",
    profile_url="https://elsewhere.example/people/bob",
)
NO = User(plan="no", card_number="0", nickname="no")

_TIMEOUT = 5.0
"""Seconds for one lookup, more than the usual ``timeout``: tests may run on a busy machine."""

MakeBackend = Callable[[Sequence[User]], AnyBackend]


def make_backend(kind: type[AnyBackend], base_dir: Path, /, **options: Any) -> AnyBackend:
    """Builds a backend as the configuration does, relative paths being below ``base_dir``."""
    options = {"name": "tested", "kind": "tested", **options}
    return kind(kind.options_type.model_validate(options, context={"base_dir": base_dir}))


async def _find(backend: AnyBackend, query: Query) -> User | BackendResult | None:
    """Look a user up within a timeout, as the guard of a backend does."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await backend.find(query)
    except TimeoutError:
        raise Unavailable(f"no answer within {_TIMEOUT:g} s") from None


class BackendConformance:
    """The promises of a `Backend`, as tests.

    A subclass named ``Test…`` gives two fixtures: ``make_backend``, which returns a
    function from users to an unopened backend that knows just these, and
    ``failing_backend``, an unopened backend whose source cannot be asked.
    """

    users: ClassVar[Sequence[User]] = (ALICE, BOB, NO)

    async def test_a_user_is_found_by_nickname(self, make_backend: MakeBackend) -> None:
        """Every field comes back as it was put in."""
        async with open_backends([make_backend(self.users)]) as (backend,):
            for user in self.users:
                assert await _find(backend, ByNickname(user.nickname)) == user

    async def test_a_user_is_found_by_card(self, make_backend: MakeBackend) -> None:
        """Every field comes back as it was put in."""
        async with open_backends([make_backend(self.users)]) as (backend,):
            for user in self.users:
                assert await _find(backend, ByCard(user.card_number)) == user

    @pytest.mark.parametrize(
        "query",
        [
            ByNickname("unknown"),
            ByNickname("ALICE"),
            ByNickname("alic"),
            ByNickname("alice2"),
            ByNickname("4000123412341234"),
            ByNickname("%"),
            ByNickname("a" * 64),
            ByCard("4999999999999999"),
            ByCard("12345670"),
            ByCard("04000123412341234"),
            ByCard("00"),
            ByCard("9" * 32),
        ],
        ids=repr,
    )
    async def test_an_absent_user_is_not_known_here(
        self, make_backend: MakeBackend, query: Query
    ) -> None:
        """Case, zeros in front and wild cards make another user, not the same one."""
        async with open_backends([make_backend(self.users)]) as (backend,):
            assert await _find(backend, query) is None

    async def test_an_empty_source_has_no_users(self, make_backend: MakeBackend) -> None:
        """No users is a valid state, not a failure."""
        async with open_backends([make_backend(())]) as (backend,):
            assert await _find(backend, ByNickname("alice")) is None

    async def test_lookups_at_once_do_not_mix_up_users(self, make_backend: MakeBackend) -> None:
        """Each of many concurrent lookups gets its own answer."""
        queries = [ByNickname(user.nickname) for user in self.users] * 20
        async with open_backends([make_backend(self.users)]) as (backend,):
            answers = await asyncio.gather(*(_find(backend, query) for query in queries))
        assert answers == list(self.users) * 20

    async def test_opening_and_closing_twice_works(self, make_backend: MakeBackend) -> None:
        """A second backend over the same source is independent of the first."""
        for _ in range(2):
            async with open_backends([make_backend(self.users)]) as (backend,):
                assert await _find(backend, ByNickname("alice")) == self.users[0]

    async def test_a_failing_source_is_never_not_found(self, failing_backend: AnyBackend) -> None:
        """It refuses to open, or its lookups raise; ``None`` would be a lie."""
        with pytest.raises((StartError, LookupFailed)):
            async with open_backends([failing_backend]) as (backend,):
                await _find(backend, ByNickname("alice"))
