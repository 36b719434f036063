"""``tornado-idv keys export`` and ``keys import``, also with ``--update``: keys move to a store."""

import json
import stat
from collections.abc import Callable
from hashlib import sha256
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

Import = Callable[..., Result]
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


def line(key_id: str, **members: object) -> str:
    return json.dumps({"id": key_id, "sha256": sha256(key_id.encode()).hexdigest(), **members})


@pytest.fixture
def import_lines(invoke: Invoke, path: Path) -> Import:
    """Imports lines from standard input."""

    def run(*lines: str, options: tuple[str, ...] = ()) -> Result:
        arguments = ("keys", "import", "-", "--create", "--store", path, *options)
        return invoke(*arguments, stdin="".join(f"{each}\n" for each in lines).encode())

    return run


def test_keys_are_imported_with_their_attributes(import_lines: Import, path: Path) -> None:
    whole = line(
        "shop",
        owner="web shop",
        scopes=["identify:card"],
        created="2025-01-01T00:00:00Z",
        not_before="2026-01-01T00:00:00Z",
        expires="2027-01-01T00:00:00+01:00",
        requests="100/second",
        misses="300/10 minutes",
        note="from the old system",
        disabled=True,
    )
    result = import_lines(whole, "", line("plain"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "Imported 2 keys.\n" in result.stderr
    plain, shop = read(path).values()
    assert plain.tokens[0].digest == digest("plain")
    assert (shop.id, shop.owner, shop.note) == ("shop", "web shop", "from the old system")
    assert (shop.scopes, shop.disabled) == (("identify:card",), True)
    assert (shop.not_before, shop.expires) == (1767225600.0, 1798758000.0)
    assert shop.created == shop.tokens[0].created == 1735689600.0
    assert (shop.requests, shop.misses) == (Rate(100, 1), Rate(300, 600))


def test_later_use_of_an_equal_key_is_imported(import_lines: Import, path: Path) -> None:
    import_lines(line("shop"))
    used = line("shop", last_used="2026-01-01T00:00:00Z")
    result = import_lines(used, options=("--update",))
    assert "Imported 0 keys, updated 0; 1 were equal.\n" in result.stderr
    assert read(path)["shop"].last_used == 1767225600.0


LATE, NO_TIME = "9999-12-31T23:59:59-12:00", "must be a time from 1970 on and before the year 9999"
TIMES = ("created", "not_before", "expires", "revoked", "last_used")
WRONG = [
    ("shop", "not a line of JSON"),
    ("[]", "must be an object"),
    (json.dumps({"sha256": "0" * 64}), "id: is missing"),
    ('{"id": "x"}', "sha256: is required unless there are tokens"),
    (line("a_b"), "id: must be 1 to 64 letters, digits, . and -"),
    (line("x", sha256="00"), "sha256: must be 64 hexadecimal digits"),
    (line("x", token="idv_x"), "token: is not a member of a key"),
    (line("x", idv_shop_QFmcf6EWP9QahxDlTtEjbVgTfpXCotL8_133ca667=1), "is not a member of a key"),
    (line("x", scopes=["all"]), "scopes[0]: Input should be"),
    (line("x", scopes=[]), "scopes: "),
    (line("x", expires="2027-01-01T00:00:00"), "expires: the time zone is missing"),
    (line("x", expires=2027), "expires: not a date and time"),
    (line("x", disabled="yes"), "disabled: must be true or false"),
    *((line("x", **{name: LATE}), f"{name}: {NO_TIME}") for name in TIMES),
    *(
        (line("x", sha256=None, tokens=[{"sha256": "1" * 64, name: LATE}]), f"tokens[0].{name}: ")
        for name in ("created", "expires")
    ),
    (line("x", requests="100"), "requests: not a rate"),
    *((line("x", **{name: "a\nb"}), f"{name}: must be at most 200 ") for name in ("owner", "note")),
    (
        line("x", not_before="2027-01-01T00:00:00Z", expires="2026-01-01T00:00:00Z"),
        "expires: must be after not_before",
    ),
    (line("x", tokens=[{"sha256": "1" * 64}]), "sha256: cannot be combined with tokens"),
    ('{"id": "x", "tokens": []}', "tokens: "),
    ('{"id": "x", "tokens": [{}]}', "tokens[0].sha256: is missing"),
    (line("good", sha256="0" * 64), "id: the same as in line 1"),
    (
        line("x", sha256=None, tokens=[{"sha256": "1" * 64}, {"sha256": digest("good").hex()}]),
        "sha256: the same as in line 1",
    ),
    (line("shop"), "the key shop exists already"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_line_is_reported_with_its_number_and_nothing_is_imported(
    import_lines: Import, path: Path, wrong: str, message: str
) -> None:
    make_store(path, "shop")
    known = read(path)
    result = import_lines(line("good"), "", wrong)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"<stdin>:3:1: {message}")
    assert len(result.stderr.splitlines()) == 1
    assert read(path) == known


def test_all_wrong_lines_are_reported(import_lines: Import, path: Path) -> None:
    result = import_lines("x", line("a", scopes=0, note=0), options=("--json",))
    assert (result.exit_code, result.stderr) == (1, "")
    problems = json.loads(result.stdout)["problems"]
    assert [(each["line"], each["path"]) for each in problems] == [
        (1, ""),
        (2, "scopes"),
        (2, "note"),
    ]
    assert not path.exists()


def test_file_without_keys_is_error_and_creates_no_store(import_lines: Import, path: Path) -> None:
    result = import_lines("", " ")
    assert (result.exit_code, result.stderr) == (1, "<stdin>: there is no key in it\n")
    assert not path.exists()
