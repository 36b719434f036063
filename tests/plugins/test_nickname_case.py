"""``nickname_case: fold``: users are found whatever case they are asked for and stored in."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from support.processes.service import CONFIG, Client, Reply, serving

FOLD = "identifiers: {nickname_case: fold, nickname_pattern: '[a-z.]+'}\n"
SQLITE = "  - {name: users, kind: sqlite, path: users.db}\n"
CARD = "4000123412341234"
TABLE = "CREATE TABLE users (nickname TEXT, card_number TEXT UNIQUE, plan TEXT);"


def found(reply: Reply) -> dict[str, str]:
    assert reply.status == 200, reply.body
    record = json.loads(reply.body)
    return {name: record[name] for name in ("nickname", "profile_url")}


def test_a_user_stored_with_capitals_is_found_in_any_case(tmp_path: Path) -> None:
    """The pattern sees the folded nickname; the response shows it, asked by card too."""
    with closing(sqlite3.connect(tmp_path / "users.db")) as database:
        rows = f"('Ali.Ce', '{CARD}', 'Free'), ('bob', '1', 'Free')"
        database.executescript(f"{TABLE} INSERT INTO users VALUES {rows}")
    expected = {"nickname": "@ali.ce", "profile_url": "https://profiles.example/m/ali.ce"}
    with serving(FOLD + CONFIG + SQLITE, tmp_path) as service:
        client = Client(service.port)
        for text in ("@ali.ce", "@ALI.CE", "https://profiles.example/m/Ali.Ce"):
            assert found(client.by_input(text)) == expected
        assert found(client.by_card(CARD)) == expected
        assert client.by_input("@ali").status == 404
        assert client.by_input("@ali_ce").status == 422
