"""Conformance tests for backends of plugins.

Import this module only in tests: it needs pytest and pytest-tornasync.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from tornado_idv.errors import LookupFailed, StartError, Unavailable
from tornado_idv.interfaces.backend import AnyBackend, CanaryOptions
from tornado_idv.lookup.guard import Guard
from tornado_idv.model import BackendResult, ByCard, ByNickname, Query, Step, User
from tornado_idv.registry import opened_backend

__all__ = ["BackendConformance", "MakeBackend", "make_backend"]

ALICE = User(plan="Free", card_number="4000123412341234", nickname="alice")
BOB = User(
    plan="Pro Ünïcode",
    card_number="0012345670",
    nickname="Bob_the.builder-9",
    profile_url="https://elsewhere.example/people/bob",
)
NO = User(plan="no", card_number="0", nickname="no")

_TIMEOUT = 5.0
"""Maximum seconds for one lookup. Busy machines need more than the usual ``timeout``."""

MakeBackend = Callable[[Sequence[User]], AnyBackend]

_IDENTIFIERS = {"nickname_case": "preserve"}
"""The settings in ``identifiers`` for backends from `make_backend`."""


def make_backend(kind: type[AnyBackend], base_dir: Path, /, **options: Any) -> AnyBackend:
    """Return a backend with these options, built as from a configuration file in ``base_dir``."""
    options = {"name": "tested", "kind": "tested", **options}
    context = {"base_dir": base_dir, **_IDENTIFIERS}
    return kind(kind.options_type.model_validate(options, context=context))


async def _find(backend: AnyBackend, query: Query) -> User | BackendResult | None:
    """Look a user up. A timeout is `Unavailable`, as in the service."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await backend.find(query)
    except TimeoutError:
        raise Unavailable(f"no answer within {_TIMEOUT:g} s") from None


_BLOCKING = {"open", "sqlite3.connect", "subprocess.Popen", "socket.getaddrinfo"}
"""Audit events of blocking calls (docs.python.org/3/library/audit_events.html)."""
_LIBRARIES = (sys.prefix, sys.base_prefix)
_recorders: dict[int, list[str]] = {}
"""Recorded blocking calls, by thread id of the event loop."""


def _record_call(event: str, arguments: tuple[object, ...]) -> None:
    if _recorders and event in _BLOCKING:
        calls, subject = _recorders.get(get_ident()), str(arguments[0])
        # On their first use, libraries import modules and read their own files.
        is_import = subject.endswith((".py", ".pyc", ".so")) or subject.startswith(_LIBRARIES)
        if calls is not None and not is_import:
            calls.append(f"{event} {subject}")


_add_hook = cache(partial(sys.addaudithook, _record_call))  # an audit hook cannot be removed


@contextmanager
def _blocking_calls() -> Iterator[list[str]]:
    """Collect descriptions of the blocking calls of this thread."""
    _add_hook()
    calls = _recorders[get_ident()] = []
    sleep = time.sleep

    def record_sleep(seconds: float) -> None:  # Python before 3.13 has no audit event for it
        if (recorded := _recorders.get(get_ident())) is not None:
            recorded.append(f"time.sleep {seconds:g}")
        sleep(seconds)

    try:
        with patch.object(time, "sleep", record_sleep):
            yield calls
    finally:
        del _recorders[get_ident()]


class BackendConformance:
    """Tests of the contract of a `Backend`.

    Write a subclass named ``Test…`` with two fixtures. ``make_backend`` returns a function that
    takes users, and returns an unopened backend with exactly these users. ``failing_backend``
    returns an unopened backend whose source is down. If the source can lose a part, as a truncated
    file does, also write ``truncated_backend``. It returns an unopened backend whose source had
    ``users``, and lost the last of them.
    """

    users: ClassVar[Sequence[User]] = (ALICE, BOB, NO)
    holds_duplicates: ClassVar[bool] = True
    """Whether the source can hold two users with the same nickname or card number."""
    holds_at: ClassVar[bool] = True
    """Whether the source can hold a nickname with a leading ``@``."""
    folds_stored: ClassVar[bool] = True
    """Whether a nickname stored in upper case must be found with ``nickname_case: fold``.

    Set this to false if the backend supports only stored nicknames in lower case.
    """

    async def test_a_user_is_found_by_nickname(self, make_backend: MakeBackend) -> None:
        """The returned user is equal to the stored user in every field."""
        async with opened_backend(make_backend(self.users)) as backend:
            for user in self.users:
                assert await _find(backend, ByNickname(user.nickname)) == user

    async def test_a_user_is_found_by_card(self, make_backend: MakeBackend) -> None:
        """The returned user is equal to the stored user in every field."""
        async with opened_backend(make_backend(self.users)) as backend:
            for user in self.users:
                assert await _find(backend, ByCard(user.card_number)) == user

    async def test_explain_gives_the_result_of_find(self, make_backend: MakeBackend) -> None:
        """The methods `explain` and `find` agree for found users and for a missing user."""
        async with opened_backend(make_backend(self.users)) as backend:
            for query in (ByNickname("alice"), ByCard(BOB.card_number), ByNickname("unknown")):
                steps: list[Step] = []
                assert await backend.explain(query, steps) == await _find(backend, query)
                assert all(isinstance(each, Step) for each in steps)

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
        """A query in another case, with leading zeros or with wild cards matches no user."""
        async with opened_backend(make_backend(self.users)) as backend:
            assert await _find(backend, query) is None

    async def test_an_empty_source_has_no_users(self, make_backend: MakeBackend) -> None:
        """An empty source is valid: its lookups do not fail."""
        async with opened_backend(make_backend(())) as backend:
            assert await _find(backend, ByNickname("alice")) is None

    async def test_absent_user_is_believed_only_while_the_canary_is_found(
        self, make_backend: MakeBackend
    ) -> None:
        """The option ``canary`` needs no support in the code of the backend."""
        alice = CanaryOptions(nickname=ALICE.nickname, card_number=ALICE.card_number)
        for users in (self.users, ()):
            backend = make_backend(users)
            backend.options = backend.options.model_copy(update={"canary": alice})
            async with opened_backend(backend):
                guard, deadline = Guard(backend, lambda _: True), time.monotonic() + _TIMEOUT
                for query in (ByNickname("unknown"), ByCard("4999999999999999")):
                    with nullcontext() if users else pytest.raises(LookupFailed):
                        answer = await guard.find(query, deadline)
                        assert answer is None or not answer.found

    async def test_lookups_at_once_do_not_mix_up_users(self, make_backend: MakeBackend) -> None:
        """Each of many concurrent lookups gets the user that it requested."""
        queries = [ByNickname(user.nickname) for user in self.users] * 20
        async with opened_backend(make_backend(self.users)) as backend:
            answers = await asyncio.gather(*(_find(backend, query) for query in queries))
        assert answers == list(self.users) * 20

    async def test_opening_and_closing_twice_works(self, make_backend: MakeBackend) -> None:
        """After a backend is closed, another with the same users can be opened."""
        for _ in range(2):
            async with opened_backend(make_backend(self.users)) as backend:
                assert await _find(backend, ByNickname("alice")) == self.users[0]

    @pytest.mark.parametrize("query", [ByNickname("alice"), ByCard(ALICE.card_number)], ids=repr)
    async def test_two_users_of_one_name_are_an_error(
        self, make_backend: MakeBackend, query: Query
    ) -> None:
        """If two users match a query, an error is raised; a user or ``None`` would be wrong."""
        if not self.holds_duplicates:
            return
        same_nickname = User(plan="Pro", card_number="5555", nickname="alice")
        same_card = User(plan="Pro", card_number=ALICE.card_number, nickname="carol")
        other = same_nickname if isinstance(query, ByNickname) else same_card
        with pytest.raises((StartError, LookupFailed)):
            async with opened_backend(make_backend((ALICE, other))) as backend:
                await _find(backend, query)

    async def test_a_nickname_stored_with_at_is_found_or_an_error(
        self, make_backend: MakeBackend
    ) -> None:
        """A lookup of ``alice`` finds the stored ``@alice``, or raises; ``None`` would be wrong."""
        if not self.holds_at:
            return
        with suppress(StartError, LookupFailed):
            stored = User(ALICE.plan, ALICE.card_number, "@alice")
            async with opened_backend(make_backend((stored,))) as backend:
                assert await _find(backend, ByNickname("alice")) == ALICE

    async def test_a_nickname_in_another_case_is_found_if_case_is_folded(
        self, make_backend: MakeBackend
    ) -> None:
        """With ``nickname_case: fold``, queries in lower case find nicknames in upper case."""
        if not self.folds_stored:
            return
        first = self.users[0]
        stored = User(first.plan, first.card_number, first.nickname.upper(), first.profile_url)
        with patch.dict(_IDENTIFIERS, nickname_case="fold"):
            backend = make_backend((stored,))
        if not backend.options.folds_nicknames:
            pytest.skip("requires a backend built by tornado_idv.kit.testing.make_backend")
        async with opened_backend(backend):
            assert await _find(backend, ByNickname(first.nickname.lower())) == stored

    async def test_nothing_blocks_the_event_loop(self, make_backend: MakeBackend) -> None:
        """Only threads without an event loop open files, resolve names, run programs and sleep."""
        backend = make_backend(self.users)
        with _blocking_calls() as calls:
            async with opened_backend(backend):
                await _find(backend, ByNickname("alice"))
        assert not calls, f"in the event loop: {calls}"

    @pytest.fixture
    def truncated_backend(self) -> AnyBackend | None:
        """Return ``None``: by default, the source cannot lose a part."""
        return None

    async def test_a_source_that_lost_its_tail_is_never_not_found(
        self, truncated_backend: AnyBackend | None
    ) -> None:
        """The backend does not open, or lookups of lost users raise; ``None`` would be wrong."""
        if truncated_backend is None:
            return
        with suppress(StartError, LookupFailed):
            async with opened_backend(truncated_backend) as backend:
                for user in self.users:
                    for query in (ByNickname(user.nickname), ByCard(user.card_number)):
                        with suppress(LookupFailed):
                            assert await _find(backend, query) == user

    async def test_a_failing_source_is_never_not_found(self, failing_backend: AnyBackend) -> None:
        """The backend does not open, or its lookups raise; ``None`` would be wrong."""
        with pytest.raises((StartError, LookupFailed)):
            async with opened_backend(failing_backend) as backend:
                await _find(backend, ByNickname("alice"))
