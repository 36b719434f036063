"""The suite that every user store passes: its interface, and the commands ``tornado-idv users``."""

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Timer
from typing import Any, ClassVar

import pytest

from support.databases import import_model
from support.databases.user_lists import ANY_LIST, HEADER, csv_row
from support.databases.user_tables import LOOSE, UNIQUE, Mode, UserTable
from support.processes.process import Invoke
from tornado_idv import Broken, LookupFailed, StartError, Unavailable, User, UserStore
from tornado_idv.cli.common import RefusedError

SITE = "https://elsewhere.example"
ALICE, BOB = User("Free", "1", "alice"), User("Pro", "2", "bob", f"{SITE}/b")
SAME_NICKNAME = "the nickname is also that of line {}"
SAME_CARD = "the card number is also that of line {}"
TAKEN_CARD = "the card number belongs to a stored user who is not in the list"
NUMBERS = "nickname TEXT, card_number INTEGER, plan TEXT"
MODES: tuple[Mode, ...] = ("replace", "merge")
each_mode = pytest.mark.parametrize("mode", MODES)
each_start = pytest.mark.parametrize(
    ("mode", "stored"),
    [("replace", [BOB]), ("merge", [BOB]), ("replace", [])],
    ids=["replace", "merge", "empty"],
)


def user(number: int, plan: str = "Free", url: str | None = None) -> User:
    return User(plan, str(number), f"user{number}", url)


class UserStoreTransactions:
    """The part of the suite that differs by the database's way of a commit."""

    commit_fails: ClassVar[bool] = True
    """Whether a test can make the commit fail."""

    @each_mode
    def test_changes_are_made_and_counted(self, table: UserTable, mode: Mode) -> None:
        """A URL comes, goes and changes; a plan and a card number change; two are exchanged."""
        urls = [None, f"{SITE}/1", f"{SITE}/2", f"{SITE}/3"]
        stored = [user(number, url=url) for number, url in enumerate(urls)]
        table.write(*stored, *(user(number) for number in range(4, 10)))
        new_urls = [f"{SITE}/0", None, f"{SITE}/other", f"{SITE}/3"]
        users = [user(number, url=url) for number, url in enumerate(new_urls)]
        users += [user(4, "Pro"), User("Free", "50", "user5"), user(6)]
        users += [User("Free", "8", "user7"), User("Pro", "7", "user8"), user(91)]
        kept = [user(9)] if mode == "merge" else []
        assert table.load(users, mode) == ((10, 1, 7, 1 - len(kept)), [])
        assert table.users() == {*users, *kept}
        assert table.store().count() == 10 + len(kept)
        assert list(table.store().records()) == [*users[:9], *kept, users[9]]
        assert table.load(users, mode) == ((10, 0, 0, 0), [])

    @pytest.mark.parametrize(
        ("moment", "end"),
        [("reading", SystemExit), ("review", KeyboardInterrupt), ("review", StartError)],
    )
    @each_start
    def test_import_that_ends_before_the_commit_changes_nothing(
        self,
        table: UserTable,
        mode: Mode,
        stored: list[User],
        moment: str,
        *,
        end: type[BaseException],
    ) -> None:
        """By a signal, or refused; until then lookups find the users of before."""
        table.write(*stored)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

        def interrupt() -> None:
            assert table.users() == set(stored)
            if end is StartError:
                raise StartError("refused")
            os.kill(os.getpid(), signal.SIGTERM if end is SystemExit else signal.SIGINT)

        users = then(interrupt, ALICE) if moment == "reading" else [ALICE]
        with pytest.raises(end):
            table.load(users, mode, meanwhile=interrupt)
        assert table.users() == set(stored)

    @each_start
    def test_signals_after_the_commit_are_ignored(
        self, table: UserTable, mode: Mode, stored: list[User]
    ) -> None:
        """They would hide from the user that the users are changed."""
        table.write(*stored)
        before: list[object] = []
        table.load([ALICE], mode, meanwhile=lambda: before.extend(_handlers()))
        assert signal.SIG_IGN not in before
        assert _handlers() == [signal.SIG_IGN] * 3

    @pytest.mark.parametrize("uncertain", [True, False])
    def test_failed_commit_is_uncertain_only_without_a_response(
        self, table: UserTable, monkeypatch: pytest.MonkeyPatch, *, uncertain: bool
    ) -> None:
        if not self.commit_fails:
            return
        table.write(BOB)
        table.fail_commit(monkeypatch, uncertain=uncertain)
        with pytest.raises((StartError, LookupFailed)) as caught:
            table.load([ALICE])
        assert ("could not be determined; import them again" in str(caught.value)) == uncertain
        assert uncertain or table.users() == {BOB}

    @each_mode
    def test_other_writers_wait_for_the_import_and_readers_do_not(
        self, table: UserTable, mode: Mode
    ) -> None:
        """Changes of theirs would be lost."""
        table.write(BOB)

        def lock() -> None:
            assert table.users() == {BOB}
            with pytest.raises(Exception, match="lock"):
                table.lock()

        table.load([ALICE], mode, meanwhile=lock)
        table.lock()

    @each_start
    def test_users_that_another_writer_adds_meanwhile_are_stored_ones(
        self, table: UserTable, mode: Mode, stored: list[User]
    ) -> None:
        """Its transaction ends while the import waits for it."""
        table.write(*stored)
        writing = table.writing("INSERT INTO users VALUES ('carl', '3', 'Free', NULL)")
        writing.__enter__()
        commit = Timer(0.2, writing.__exit__, (None, None, None))
        commit.start()
        (_, _, _, removed), _ = table.load([ALICE], mode)
        commit.join()
        count = len(stored) + 1
        assert removed == (0 if mode == "merge" else count)
        assert len(table.users()) == 1 + count - removed

    def test_lock_of_another_writer_is_reported(
        self, table: UserTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table.write(BOB)
        table.wait_briefly(monkeypatch)
        locked = pytest.raises(Unavailable, match="locked")
        with table.writing("UPDATE users SET plan = plan"), locked:
            table.load([ALICE])
        assert table.users() == {BOB}


class UserStoreConformance(UserStoreTransactions):
    """The promises of a `UserStore`, as tests.

    A subclass named ``Test…`` gives the fixture ``table``.
    """

    @each_mode
    def test_other_columns_are_kept(self, table: UserTable, mode: Mode) -> None:
        """Rows may have neither a nickname nor a card number where the table lets them."""
        rows = ("bob", None, "b", "then"), ("carl", "3", "c", "then"), ("dora", "4", "d", "then")
        merged = mode == "merge"
        table.create(LOOSE, (None, "1", "a", "then"), *rows, *[(None, None, "x", "then")][merged:])
        users = [User("B", "2", "bob"), User("c", "3", "carl"), User("D", "4", "dora")]
        done = table.load([*users, User("e", "5", "emil")], mode)
        assert done == ((4, 1, 2, 0 if merged else 2), [])
        assert table.run("SELECT nickname, card_number, plan, since FROM users ORDER BY 2") == [
            *([(None, "1", "a", "then")] if merged else []),
            *(("bob", "2", "B", "then"), ("carl", "3", "c", "then"), ("dora", "4", "D", "then")),
            ("emil", "5", "e", "now"),
        ]

    def test_card_number_that_a_stored_user_keeps_is_not_taken(self, table: UserTable) -> None:
        """Dora and emil exchange theirs; that of bob is carl's, who is not in the list."""
        names = ["alice", "bob", "carl", "dora", "emil"]
        table.create(UNIQUE, *((name, str(i), "Free", None) for i, name in enumerate(names)))
        wanted = {"fay": "0", "alice": "1", "bob": "2", "dora": "4", "emil": "3", "gina": "6"}
        done = table.load((User("Pro", card, name) for name, card in wanted.items()), "merge")
        chain = "the card number belongs to a stored user, kept because line {} is rejected"
        rejected = [(2, chain.format(3)), (3, chain.format(4)), (4, TAKEN_CARD)]
        assert done == ((3, 1, 2, 0), rejected)
        assert table.run("SELECT nickname, card_number, plan FROM users ORDER BY 1") == [
            *(("alice", "0", "Free"), ("bob", "1", "Free"), ("carl", "2", "Free")),
            *(("dora", "4", "Pro"), ("emil", "3", "Pro"), ("gina", "6", "Pro")),
        ]

    def test_card_number_of_a_stored_row_without_a_nickname_is_not_taken(
        self, table: UserTable
    ) -> None:
        table.create(LOOSE, (None, "1", "a", None))
        done = table.load([User("b", "1", "bob"), User("c", "2", "carl")], "merge")
        assert done == ((1, 1, 0, 0), [(2, TAKEN_CARD)])
        rows = table.run("SELECT nickname, card_number FROM users ORDER BY 2")
        assert rows == [(None, "1"), ("carl", "2")]

    @pytest.mark.parametrize(
        ("cards", "kept"),
        [([], []), (["9"], []), (["1"], [("old", "1")])],
        ids=["empty", "filled", "card of a row"],
    )
    def test_neither_of_two_rows_with_one_value_is_imported(
        self, table: UserTable, cards: list[str], kept: list[tuple[str, str]]
    ) -> None:
        """Both are named, also if a stored user has the value. YAML may have several on a line."""
        table.create(LOOSE, *(("old", each, "x", None) for each in cards))
        names = ["alice", "bob", "alice", "carl", "carl", "dora", "emil", "emil", "fay", "ALICE"]
        users = (User("Free", card, name) for name, card in zip(names, "1232435657", strict=True))
        done = table.load(users, lines=(2, 3, 4, 5, 6, 7, 8, 8, 8, 9))
        rejected = [(2, SAME_NICKNAME.format(4)), (3, SAME_CARD.format(5))]
        rejected += [(4, SAME_NICKNAME.format(2)), (5, SAME_NICKNAME.format(6))]
        rejected += [(6, SAME_NICKNAME.format(5)), (7, SAME_CARD.format(4))]
        rejected += [(8, SAME_NICKNAME.format(8)), (8, SAME_NICKNAME.format(8))]
        rejected += [(8, SAME_CARD.format(8))]
        assert done == ((1, 1, 0, len(cards) - len(kept)), rejected)
        rows = table.run("SELECT nickname, card_number FROM users ORDER BY 2")
        assert rows == [*kept, ("ALICE", "7")]

    @pytest.mark.parametrize("seed", range(12))
    def test_any_list_changes_what_it_says_and_nothing_else(
        self, table: UserTable, seed: int
    ) -> None:
        """Compared with a model: who is stored, and under which number."""
        chance = random.Random(seed)
        for _ in range(3):
            stored = import_model.random_store(chance)
            fold, mode = chance.choice([False, True]), chance.choice(MODES)
            rows = import_model.random_rows(chance, stored, fold=fold)
            table.run(import_model.script(table.row_id, stored))
            expected = import_model.imported(stored, rows, merges=mode == "merge", fold=fold)
            numbered = enumerate((each.fields for each in rows), start=2)
            try:
                result, _, _ = table.load_rows(numbered, mode, fold=fold)
            except RefusedError:
                assert expected.valid == 0
                expected = import_model.imported(stored, [], merges=True, fold=fold)
            else:
                assert result.kept == expected.kept
                assert result.imported == expected.valid
                assert result.not_found == expected.not_found
            assert import_model.read(table.run) == expected.stored

    def test_row_of_a_nickname_that_two_stored_users_have_is_rejected(
        self, table: UserTable
    ) -> None:
        rows = [("alice", "1", "Free", "then"), ("alice", "2", "Pro", "then")]
        table.create(LOOSE, *rows)
        done = table.load([User("Team", "3", "alice"), User("Free", "4", "bob")])
        reason = "two stored users have the nickname; correct the table"
        assert done == ((1, 1, 0, 0), [(2, reason)])
        stored = [*rows, ("bob", "4", "Free", "now")]
        read = "SELECT nickname, card_number, plan, since FROM users ORDER BY 2"
        assert table.run(read) == stored
        # Nor does a row that is rejected for another reason remove one of the two.
        table.load_rows([(2, ("al!ice", "1", "Free", None)), (3, ("bob", "4", "Free", None))])
        assert rows[0] in table.run(read)

    def test_unused_number_is_not_that_of_another_row_of_the_list(
        self, table: UserTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two users exchange their cards; the first number that is tried is user0's new one."""
        table.write(*(user(number) for number in range(8)))
        numbers = count(8)
        monkeypatch.setattr(random, "randrange", lambda bound: next(numbers) % bound)
        cards = ["8", "1", "2", "3", "4", "5", "7", "6"]
        users = [User("Free", card, f"user{number}") for number, card in enumerate(cards)]
        assert table.load(users) == ((8, 0, 3, 0), [])
        assert table.users() == {*users}

    def test_difference_that_a_column_ignores_is_a_change(self, table: UserTable) -> None:
        caseless = f"nickname TEXT {table.caseless}, card_number TEXT, plan TEXT {table.caseless}"
        table.create(caseless, ("alice", "1", "FREE"), ("carl", "3", "Pro"))
        users = [User("Pro", "2", "Bob"), ALICE]
        assert table.load(users) == ((2, 1, 1, 1), [])
        assert list(table.store().records()) == users

    @pytest.mark.parametrize(("fold", "order"), [(True, "_aBc"), (False, "B_ac")])
    def test_records_are_in_the_order_of_nicknames(
        self, table: UserTable, *, fold: bool, order: str
    ) -> None:
        table.create(LOOSE, *((name, str(i), "x", None) for i, name in enumerate("caB_")))
        records = table.store(fold=fold).records()
        assert "".join(each.nickname for each in records) == order

    def test_nickname_with_an_at_sign_is_not_the_one_of_another_user(
        self, table: UserTable
    ) -> None:
        """Lookups of the user fail. A comparison must not report the user as missing."""
        table.write(ALICE, User("Pro", "2", "@bob"))
        with pytest.raises(Broken, match="stored with a leading @"):
            list(table.store().records())

    def test_all_of_many_rows_are_read(self, table: UserTable) -> None:
        table.run(
            "WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers "
            "WHERE i < 5001) INSERT INTO users SELECT 'user' || i, i, 'Free', NULL FROM numbers"
        )
        cards = {each.card_number for each in table.store().records()}
        assert (table.store().count(), len(cards)) == (5001, 5001)

    def test_table_and_columns_may_have_any_names(self, table: UserTable) -> None:
        columns = {"nickname": "select", "card_number": "card'no", "plan": "a b"}
        columns["profile_url"] = 'u."x'
        options: dict[str, Any] = {"table": 'my "people"; --', "columns": columns}
        names = '"select" TEXT, "card\'no" TEXT, "a b" TEXT, "u.""x" TEXT'
        table.run(f'CREATE TABLE "my ""people""; --" ({names})')
        store, changed = table.store(**options), User("Free", "2", "bob")
        assert table.load([ALICE, BOB], **options) == ((2, 2, 0, 0), [])
        assert list(store.records()) == [ALICE, BOB]
        assert table.load([changed], "merge", **options) == ((1, 0, 1, 0), [])
        assert (list(store.records()), store.count()) == ([ALICE, changed], 2)

    def test_profile_url_needs_a_column(self, table: UserTable) -> None:
        table.create(LOOSE, ("alice", "1", "Free", None))
        result, [(line, reason)] = table.load([ALICE, BOB])
        assert (result, line) == ((1, 0, 0, 0), 3)
        assert reason.startswith("profile_url: the table has no column for it; see columns.profile")
        assert list(table.store().records()) == [ALICE]

    @each_start
    def test_users_that_the_table_refuses_are_not_named(
        self, table: UserTable, mode: Mode, stored: list[User]
    ) -> None:
        """They violate a constraint; nothing is changed."""
        table.create(f"{UNIQUE}, CONSTRAINT paid CHECK (plan <> 'Free')")
        table.write(*stored)
        with pytest.raises(Broken, match=r"the table refuses.*paid$") as caught:
            table.load([User("Team", "3", "carl"), ALICE], mode)
        assert "alice" not in caught.value.reason
        assert table.users() == set(stored)

    def test_own_column_that_a_new_user_needs_is_named(self, table: UserTable) -> None:
        table.create(f"{UNIQUE}, since TEXT NOT NULL")
        with pytest.raises(Broken, match=r"the table refuses.*NOT NULL.*since$"):
            table.load([ALICE])
        assert table.users() == set()

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("ALTER TABLE users RENAME TO people", "there is no table"),
            ("ALTER TABLE users RENAME COLUMN nickname TO nick", 'has no column "nickname"'),
            (f"DROP TABLE users; CREATE TABLE users ({NUMBERS})", "not text|declare it TEXT"),
        ],
        ids=["table", "column", "number"],
    )
    def test_missing_or_unsuitable_column_is_reported(
        self, table: UserTable, change: str, reason: str
    ) -> None:
        table.run(change)
        assert_all_fail(table.store(), reason)

    def test_unreachable_source_is_reported(self, table: UserTable) -> None:
        assert_all_fail(table.store(**table.unreachable), ".")

    def test_commands_import_export_and_compare(
        self, table: UserTable, invoke: Invoke, tmp_path: Path
    ) -> None:
        """Compare is with what was exported, in full and by lookups."""
        config = table.configure("{name: other, kind: sqlite, path: other.db}")

        def users(name: str, *arguments: object) -> str:
            done = invoke("users", name, *arguments, "-c", config)
            assert (done.exit_code, done.stderr) == (0, "")
            return done.stdout

        table.write(User("Old", "9", "old"), User("Old", "2", "alice"))
        file, again = tmp_path / "list.csv", tmp_path / "again.yaml"
        file.write_text(HEADER + csv_row(ALICE) + csv_row(BOB))
        changed = '"imported": 2, "added": 1, "updated": 1, "removed": 1, "kept": 0, "rejected": 0'
        assert changed in users("import", file, "--to", "people", *ANY_LIST, "--json")
        assert table.users() == {ALICE, BOB}
        assert users("count", "--from", "people") == "2\n"
        users("export", "--from", "people", again)
        users("import", again, "--to", "other", "--max-rejected", "0", "--json")
        for pair in (("people", "other"), ("other", "people")):
            assert "compared: 2 users" in users("compare", *pair)
            assert "compared: 1 users" in users("compare", *pair, "--sample", 1)


def then(action: Callable[[], object], *users: User) -> Iterator[User]:
    """Yield users, and do something before their end, while the import waits for more."""
    yield from users
    action()


def assert_all_fail(store: UserStore, reason: str) -> None:
    """Assert that every use of a store raises an error of ours."""

    def begin(*, in_place: bool) -> None:
        with store.transaction(in_place=in_place) as changes:
            list(changes.stored())

    for use in (
        store.count,
        lambda: next(store.records()),
        lambda: begin(in_place=False),
        lambda: begin(in_place=True),
    ):
        with pytest.raises((StartError, LookupFailed), match=reason):
            use()


def _handlers() -> list[object]:
    return [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))]
