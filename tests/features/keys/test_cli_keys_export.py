"""``tornado-idv keys export`` and ``keys import --update``: keys move to another store."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from msgspec.structs import replace

from idv_postgres.key_store import PostgresKeyStore
from support.databases.key_stores import CREATED, add, execute, make_store, open_store, read, record
from support.processes.process import Invoke
from tornado_idv.features.keys.editor import Token
from tornado_idv.keys.token import digest
from tornado_idv.units import Rate

Move = Callable[..., Result]
EVERYTHING = {
    "owner": "web shop",
    "scopes": ("identify:card",),
    "not_before": CREATED + 0.25,
    "expires": CREATED + 1e6,
    "requests": Rate(100, 1),
    "misses": Rate(300, 600),
    "note": "a note\u00e9",
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A key store with a rotated, a disabled and a revoked key."""
    path = tmp_path / "old.db"
    make_store(path)
    tokens = tuple(Token(digest(text), CREATED, CREATED + 60) for text in ("first", "second"))
    rotated = record("rotated", "third", **EVERYTHING)
    rotated = replace(rotated, tokens=(*tokens, *rotated.tokens))
    add(path, rotated, record("disabled", "a", disabled=True), record("revoked", "b", revoked=1.5))
    execute(path, f"INSERT INTO last_used VALUES ('rotated', {CREATED + 1.25})")
    return path


@pytest.fixture
def move(invoke: Invoke, tmp_path: Path) -> Move:
    """Export old.db to a file, and import that into the store of new.yaml."""
    (tmp_path / "new.yaml").write_text("auth: {store: new.db}\n")
    file = tmp_path / "keys.jsonl"

    def run(*options: object) -> Result:
        exported = invoke("keys", "export", file, "--store", tmp_path / "old.db")
        assert exported.exit_code == 0, exported.stderr
        return invoke("keys", "import", file, "--config", tmp_path / "new.yaml", *options)

    return run


def test_keys_are_equal_in_the_new_store(
    move: Move, old: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = move("--create", "--json")
    counts = {"imported": 3, "updated": 0, "unchanged": 0}
    assert json.loads(done.stdout) == {"ok": True, **counts}
    moved = read(tmp_path / "new.db")
    assert moved == read(old)
    assert moved["rotated"].last_used == CREATED + 1.25
    assert len(moved["rotated"].tokens) == 3
    logged = capfd.readouterr().err
    lines = [json.loads(each) for each in logged.splitlines()]
    assert [(each["command"], each["key"]) for each in lines] == [
        ("keys import", key_id) for key_id in ("disabled", "revoked", "rotated")
    ]
    assert all(token.digest.hex() not in done.output + logged for token in moved["rotated"].tokens)


@pytest.mark.slow
def test_keys_move_to_postgres_and_back(
    move: Move, old: Path, tmp_path: Path, in_postgres: PostgresKeyStore, invoke: Invoke
) -> None:
    store = in_postgres.setting.get_secret_value()
    (tmp_path / "new.yaml").write_text(f"auth: {{store: '{store}'}}\n")
    for arguments in (["--create"], ["--update"]):
        assert move(*arguments).exit_code == 0
        assert read(in_postgres) == read(old)
    with open_store(old) as store:
        store.rotate("rotated", Token(digest("d"), CREATED + 9), overlap=5.0, expires=None)
    assert "updated 1; 2 were equal" in move("--update").stderr
    assert read(in_postgres) == read(old)
    file = tmp_path / "back.jsonl"
    assert invoke("keys", "export", file, "--config", tmp_path / "new.yaml").exit_code == 0
    assert file.read_bytes() == (tmp_path / "keys.jsonl").read_bytes()


def test_export_has_digests_and_no_token(invoke: Invoke, old: Path, tmp_path: Path) -> None:
    issued = invoke("keys", "issue", "shop", "--store", old)
    token = issued.stdout.strip()
    done = invoke("keys", "export", "--store", old)
    assert (done.exit_code, done.stderr) == (0, "Exported 4 keys.\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["id"] for each in lines] == ["disabled", "revoked", "rotated", "shop"]
    assert lines[3]["tokens"][0]["sha256"] == digest(token).hex()
    assert token not in done.output
    file = tmp_path / "keys.jsonl"
    written = invoke("keys", "export", file, "--store", old, "--json")
    assert json.loads(written.stdout) == {"ok": True, "exported": 4}
    assert file.read_text() == done.stdout
    assert invoke("keys", "export", "--store", old, "--json").stdout == done.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_time_of_a_clock_is_kept_to_the_microsecond(
    move: Move, old: Path, tmp_path: Path, invoke: Invoke
) -> None:
    """Its last digit is lost, and is no change of the key."""
    invoke("keys", "issue", "shop", "--store", old, "--expires", "90d")
    move("--create")
    one, other = read(old)["shop"], read(tmp_path / "new.db")["shop"]
    assert other.created == pytest.approx(one.created, abs=1e-6, rel=0)
    assert other.expires == pytest.approx(one.expires, abs=1e-6, rel=0)
    again = invoke("keys", "import", tmp_path / "keys.jsonl", "--store", old, "--update", "--json")
    assert json.loads(again.stdout)["unchanged"] == 4


def test_update_makes_keys_equal_that_were_changed_in_the_old_store(
    move: Move, old: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(old, record("live", "d"), record("other", "e"))
    move("--create")
    add(tmp_path / "new.db", record("of-the-new-store", "g"))
    execute(tmp_path / "new.db", f"INSERT INTO last_used VALUES ('disabled', {CREATED + 5})")
    capfd.readouterr()
    with open_store(old) as store:
        token = Token(digest("new"), CREATED + 9)
        store.rotate("rotated", token, overlap=5.0, expires=CREATED + 1e7)
        store.rotate("disabled", Token(digest("f"), CREATED), overlap=5.0, expires=None)
        store.set_disabled("disabled", disabled=False)
        store.revoke("live", CREATED)
        store.set_disabled("other", disabled=True)
    execute(tmp_path / "new.db", "UPDATE keys SET disabled = 0, created = 1 WHERE id = 'disabled'")
    add(old, record("later", "h"))
    done = move("--update", "--json")
    counts = {"imported": 1, "updated": 4, "unchanged": 1}
    assert json.loads(done.stdout) == {"ok": True, **counts}
    after = read(tmp_path / "new.db")
    assert after.pop("of-the-new-store").tokens[0].digest == digest("g")
    assert after["disabled"].last_used == CREATED + 5  # the later one of both
    assert {**after, "disabled": replace(after["disabled"], last_used=None)} == read(old)
    lines = [json.loads(each) for each in capfd.readouterr().err.splitlines()]
    assert [each["key"] for each in lines] == ["disabled", "later", "live", "other", "rotated"]


def test_expired_token_that_the_old_store_removed_is_removed(
    move: Move, old: Path, tmp_path: Path
) -> None:
    past, later = 1e9, 1e9 + 60 * 86400
    add(old, record("often", "d", past))
    with open_store(old) as store:
        store.rotate("often", Token(digest("f"), past), overlap=1.0, expires=None)
        move("--create")
        store.rotate("often", Token(digest("g"), later), overlap=1.0, expires=None)
    assert move("--update").exit_code == 0
    assert read(tmp_path / "new.db") == read(old)
    assert digest("d") not in [each.digest for each in read(old)["often"].tokens]


ANOTHER_TOKEN = "UPDATE tokens SET digest = randomblob(32), created = 1.0 WHERE id = 'rotated'"
SHORTENED = f"UPDATE tokens SET expires = coalesce(expires - 50, {CREATED + 900})"
ROTATED = f"INSERT INTO tokens VALUES (randomblob(32), 'rotated', {CREATED + 1}, NULL)"
CONFLICTS = {
    "revoked": (
        "UPDATE keys SET revoked = 1.0 WHERE id = 'rotated'",
        "the key was revoked permanently in this store",
    ),
    "disabled": (
        "UPDATE keys SET disabled = 1 WHERE id = 'rotated'",
        "the key is disabled in this store",
    ),
    "another key": (
        f"{ANOTHER_TOKEN}; UPDATE keys SET created = 1.0 WHERE id = 'rotated'",
        "another key has this id",
    ),
    "rotated": (ROTATED, "the key was rotated in this store"),
    "rotated until only its latest token was left": (
        f"DELETE FROM tokens WHERE id = 'rotated'; {ROTATED}",
        "the key was rotated in this store",
    ),
    "rotated here too, or by a slow clock": (
        f"{SHORTENED}; {ROTATED.replace(f'{CREATED + 1}, NULL', f'{CREATED - 1}, {CREATED + 99}')}",
        "the key was rotated in this store",
    ),
}


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_update_that_would_undo_a_change_is_refused(
    move: Move, old: Path, tmp_path: Path, conflict: str
) -> None:
    """Nothing that is not valid there becomes valid again, and no token is lost."""
    move("--create")
    changes, reason = CONFLICTS[conflict]
    execute(tmp_path / "new.db", *changes.split("; "))
    add(old, record("later", "d"))
    before = read(tmp_path / "new.db")
    done = move("--update")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"{tmp_path / 'keys.jsonl'}:4:1: id: {reason}")
    assert read(tmp_path / "new.db") == before


def test_update_with_a_removed_token_is_refused(move: Move, old: Path, tmp_path: Path) -> None:
    """A rotation here had ended it long ago. Both stores have rotated the key, the old one last."""
    move("--create")
    for place, day in ((tmp_path / "new.db", 0), (tmp_path / "new.db", 40), (old, 41)):
        with open_store(place) as store:
            token = Token(digest(f"day {day}"), CREATED + 86400 * day)
            store.rotate("disabled", token, overlap=86400.0, expires=None)
    assert "the key was rotated in this store" in move("--update").stderr


@pytest.mark.parametrize("state", ["revoked = 9.5", "disabled = 1"])
def test_key_that_was_revoked_is_updated_where_it_is_not_valid_either(
    move: Move, old: Path, tmp_path: Path, state: str
) -> None:
    move("--create")
    with open_store(old) as store:
        store.revoke("rotated", CREATED)
    execute(tmp_path / "new.db", f"UPDATE keys SET {state} WHERE id = 'rotated'")
    assert move("--update").exit_code == 0
    assert read(tmp_path / "new.db")["rotated"].revoked == CREATED


@pytest.mark.parametrize("options", [(), ("--update",)])
def test_token_of_another_key_is_refused(
    move: Move, old: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    make_store(tmp_path / "new.db")
    add(tmp_path / "new.db", record("other", "third"), record("disabled", "a", disabled=True))
    before = read(tmp_path / "new.db")
    execute(
        old, "DELETE FROM keys WHERE id = 'disabled'", "DELETE FROM tokens WHERE id = 'disabled'"
    )
    done = move(*options)
    assert (done.exit_code, read(tmp_path / "new.db")) == (1, before)
    assert ":2:1: another key has the token of rotated" in done.stderr


def test_tokens_may_change_hands_in_one_update(move: Move, old: Path, tmp_path: Path) -> None:
    """Lines are applied together, whatever their order."""
    make_store(tmp_path / "new.db")
    add(tmp_path / "new.db", record("disabled", "b", disabled=True), record("revoked", "a"))
    assert move("--update").exit_code == 0
    assert read(tmp_path / "new.db") == read(old)


def test_key_of_another_system_keeps_its_time_and_its_token(invoke: Invoke, tmp_path: Path) -> None:
    """Its line has no time: an update gives it none."""
    file, path = tmp_path / "keys.jsonl", tmp_path / "new.db"
    file.write_text(json.dumps({"id": "shop", "sha256": digest("a").hex()}))
    invoke("keys", "import", file, "--store", path, "--create")
    before = read(path)
    done = invoke("keys", "import", file, "--store", path, "--update", "--json")
    assert json.loads(done.stdout)["unchanged"] == 1
    assert read(path) == before
    file.write_text(json.dumps({"id": "shop", "sha256": digest("b").hex(), "owner": "x"}))
    assert invoke("keys", "import", file, "--store", path, "--update").exit_code == 0
    (token,) = read(path)["shop"].tokens
    assert (token.digest, read(path)["shop"].created) == (digest("b"), before["shop"].created)
    assert token.created > before["shop"].created  # it is new, and so the last one of the key
