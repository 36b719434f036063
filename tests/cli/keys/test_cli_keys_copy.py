"""``tornado-idv keys copy``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from msgspec.structs import replace

from support.databases.key_stores import CREATED, add, execute, make_store, open_store, read, record
from support.processes.process import Invoke
from tornado_idv.keys.record import Token
from tornado_idv.keys.token import digest
from tornado_idv.units import Rate

Copy = Callable[..., Result]
EVERYTHING = {
    "owner": "web shop",
    "scopes": ("identify:card",),
    "not_before": CREATED + 0.25,
    "expires": CREATED + 1e6,
    "requests": Rate(100, 1),
    "misses": Rate(300, 600),
    "note": "a note",
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
    execute(path, f"INSERT INTO last_used VALUES ('rotated', {CREATED + 1})")
    return path


@pytest.fixture
def copy(invoke: Invoke, tmp_path: Path) -> Copy:
    """Copy old.db, by its configuration, into new.db."""
    for name in ("old", "new"):
        (tmp_path / f"{name}.yaml").write_text(f"auth: {{store: {name}.db}}\n")

    def run(*options: object) -> Result:
        names = ["--from", tmp_path / "old.yaml", "--config", tmp_path / "new.yaml"]
        return invoke("keys", "copy", *names, *options)

    return run


def test_copy_is_equal_to_the_last_digit(
    copy: Copy, old: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = copy("--create", "--json")
    assert json.loads(done.stdout) == {"ok": True, "copied": 3, "updated": 0, "unchanged": 0}
    copied = read(tmp_path / "new.db")
    assert copied == read(old)
    assert copied["rotated"].last_used == CREATED + 1
    assert len(copied["rotated"].tokens) == 3
    logged = capfd.readouterr().err
    lines = [json.loads(each) for each in logged.splitlines()]
    assert [(each["command"], each["key"]) for each in lines] == [
        ("keys copy", key_id) for key_id in ("disabled", "revoked", "rotated")
    ]
    assert all(token.digest.hex() not in done.output + logged for token in copied["rotated"].tokens)


def test_second_copy_adds_new_keys_and_the_last_use(copy: Copy, old: Path, tmp_path: Path) -> None:
    copy("--create")
    add(old, record("later", "d"))
    execute(
        old,
        f"UPDATE last_used SET time = {CREATED + 9}",
        f"INSERT INTO last_used VALUES ('disabled', {CREATED})",
    )
    add(tmp_path / "new.db", record("of-the-new-store", "e"))
    execute(tmp_path / "new.db", f"INSERT INTO last_used VALUES ('disabled', {CREATED + 5})")
    done = copy()
    assert ": 1 new, 0 updated, 3 equal." in done.stderr
    after = read(tmp_path / "new.db")
    assert after["rotated"].last_used == CREATED + 9
    assert after["disabled"].last_used == CREATED + 5  # the later one of both
    assert {*after} == {*read(old), "of-the-new-store"}


def test_second_copy_makes_keys_equal_that_were_changed_in_the_old_store(
    copy: Copy, old: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(old, record("live", "d"), record("other", "e"))
    copy("--create")
    capfd.readouterr()
    with open_store(old) as store:
        token = Token(digest("new"), CREATED + 9)
        store.rotate("rotated", token, overlap=5.0, expires=CREATED + 1e7)
        store.rotate("disabled", Token(digest("f"), CREATED), overlap=5.0, expires=None)
        store.revoke("live", CREATED)
        store.set_disabled("other", disabled=True)
    done = copy("--json")
    assert json.loads(done.stdout) == {"ok": True, "copied": 0, "updated": 4, "unchanged": 1}
    assert read(tmp_path / "new.db") == read(old)
    lines = [json.loads(each) for each in capfd.readouterr().err.splitlines()]
    assert [each["key"] for each in lines] == ["disabled", "live", "other", "rotated"]


def test_key_whose_expired_token_was_removed_in_the_old_store_is_copied_again(
    copy: Copy, old: Path, tmp_path: Path
) -> None:
    """The token stays expired in the new store, also if the key is renewed."""
    past, later = 1e9, 1e9 + 60 * 86400
    add(old, record("often", "d", past), record("renewed", "e", past, expires=past + 1))
    add(old, record("seldom", "h", past))
    with open_store(old) as store:
        store.rotate("often", Token(digest("f"), past), overlap=1.0, expires=None)
        copy("--create")
        store.rotate("often", Token(digest("g"), later), overlap=1.0, expires=None)
        for moment in (past + 2, later):
            for key_id in ("renewed", "seldom"):
                token = Token(digest(f"{key_id} {moment}"), moment)
                store.rotate(key_id, token, overlap=1.0, expires=CREATED)
    tokens = {token.digest for key in read(old).values() for token in key.tokens}
    assert tokens.isdisjoint({digest("d"), digest("e"), digest("h")})
    done = copy("--json")
    assert json.loads(done.stdout) == {"ok": True, "copied": 0, "updated": 3, "unchanged": 3}
    copied = read(tmp_path / "new.db")
    assert copied["often"].tokens[0] == Token(digest("d"), past, past + 1)
    assert copied["renewed"].tokens[0] == Token(digest("e"), past, past + 1)
    first = copied["seldom"].tokens[0]
    assert (first.digest, (first.expires or CREATED) <= time.time()) == (digest("h"), True)
    assert json.loads(copy("--json").stdout)["unchanged"] == 6


def test_key_that_was_rotated_in_the_new_store_keeps_its_token_there(
    copy: Copy, tmp_path: Path
) -> None:
    """Also once the token that was copied is removed there."""
    past, later = 1e9, 1e9 + 60 * 86400
    make_store(tmp_path / "old.db")
    add(tmp_path / "old.db", record("shop", "d", past))
    copy("--create")
    with open_store(tmp_path / "new.db") as store:
        for moment, name in ((past + 2, "e"), (later, "f")):
            store.rotate("shop", Token(digest(name), moment), overlap=1.0, expires=None)
    execute(tmp_path / "new.db", f"DELETE FROM tokens WHERE created < {later}")
    before = read(tmp_path / "new.db")
    done = copy()
    assert (done.exit_code, "it was rotated here" in done.stderr) == (1, True)
    assert read(tmp_path / "new.db") == before


CONFLICTS = {
    "revoked": ("UPDATE keys SET revoked = 1.0 WHERE id = 'rotated'", "it is revoked here only"),
    "disabled": ("UPDATE keys SET disabled = 1 WHERE id = 'rotated'", "it is disabled here only"),
    "another key": ("UPDATE keys SET created = 1.0 WHERE id = 'rotated'", "it is another key"),
    "rotated": (
        f"INSERT INTO tokens VALUES (randomblob(32), 'rotated', {CREATED}, NULL)",
        "it was rotated here",
    ),
    "expires earlier": (
        "UPDATE keys SET expires = expires - 1 WHERE id = 'rotated'",
        "a token of it expires earlier here",
    ),
}


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_key_that_was_changed_in_the_new_store_stops_the_copy(
    copy: Copy, old: Path, tmp_path: Path, conflict: str
) -> None:
    """Nothing that is not valid there becomes valid again."""
    copy("--create")
    change, reason = CONFLICTS[conflict]
    execute(tmp_path / "new.db", change)
    add(old, record("later", "d"))
    before = read(tmp_path / "new.db")
    done = copy()
    assert done.exit_code == 1
    assert f": {reason}" in done.stderr
    assert "; nothing was copied" in done.stderr
    assert read(tmp_path / "new.db") == before


def test_key_that_was_revoked_in_both_stores_is_equal(
    copy: Copy, old: Path, tmp_path: Path
) -> None:
    copy("--create")
    change = "UPDATE keys SET revoked = 9.5, expires = 9, owner = 'other' WHERE id = 'revoked'"
    execute(tmp_path / "new.db", change)
    done = copy("--json")
    assert json.loads(done.stdout) == {"ok": True, "copied": 0, "updated": 0, "unchanged": 3}


def test_key_that_was_disabled_in_the_new_store_is_revoked_as_in_the_old_one(
    copy: Copy, old: Path, tmp_path: Path
) -> None:
    copy("--create")
    execute(tmp_path / "new.db", CONFLICTS["disabled"][0])
    with open_store(old) as store:
        store.revoke("rotated", CREATED)
    done = copy("--json")
    assert json.loads(done.stdout) == {"ok": True, "copied": 0, "updated": 1, "unchanged": 2}
    assert read(tmp_path / "new.db")["rotated"].revoked == CREATED


def test_token_of_another_key_stops_the_copy(copy: Copy, old: Path, tmp_path: Path) -> None:
    make_store(tmp_path / "new.db")
    add(tmp_path / "new.db", record("other", "third"))
    done = copy()
    assert (done.exit_code, [*read(tmp_path / "new.db")]) == (1, ["other"])
    assert "another key has the token of rotated" in done.stderr


def test_new_token_that_another_key_has_stops_the_second_copy(
    copy: Copy, old: Path, tmp_path: Path
) -> None:
    copy("--create")
    with open_store(old) as store:
        store.rotate("disabled", Token(digest("new"), CREATED), overlap=5.0, expires=None)
    add(tmp_path / "new.db", record("other", "new"))
    before = read(tmp_path / "new.db")
    done = copy()
    assert (done.exit_code, read(tmp_path / "new.db")) == (1, before)
    assert "such as disabled: another key has its token" in done.stderr


def test_key_of_the_configuration_stops_the_copy(copy: Copy, old: Path, tmp_path: Path) -> None:
    keys = f"[{{id: rotated, sha256: {digest('x').hex()}}}]"
    (tmp_path / "new.yaml").write_text(f"auth: {{store: new.db, keys: {keys}}}\n")
    done = copy("--create")
    assert done.exit_code == 1
    assert "config.yaml has a key rotated in auth.keys" in done.stderr
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("missing", ["old.db", "new.db"])
def test_missing_store_is_an_error(copy: Copy, old: Path, tmp_path: Path, missing: str) -> None:
    if missing == "old.db":
        old.unlink()
    done = copy(*["--create"] * (missing == "old.db"))
    assert done.exit_code == 1
    assert f"{tmp_path / missing}: there is no key store" in done.stderr
    assert not (tmp_path / "new.db").exists()
