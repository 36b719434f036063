"""``tornado-idv migrate`` reads what a service with several workers has compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.databases import sqlite_databases
from support.processes.admin import ask_admin
from support.processes.process import Invoke, eventually, running
from support.processes.service import CONFIG, Client
from tornado_idv import User

USERS = [User("Free", f"4000{number:04}", f"user{number}") for number in range(40)]
BACKENDS = """\
  - {name: old, kind: sqlite, path: old.db}
  - {name: new, kind: sqlite, path: new.db, shadow: {sample: 100%, rate: 1000/s, state: shadow.db}}
admin: {port: 0}
logging: {ids: full}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two workers; the shadow lacks a user, has another plan of one, and one more."""
    sqlite_databases.write(tmp_path / "old.db", *USERS)
    other = User("Pro", USERS[1].card_number, USERS[1].nickname)
    sqlite_databases.write(tmp_path / "new.db", other, *USERS[2:], User("Free", "5", "extra"))
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("port: 0,", "port: 0, workers: 2,") + BACKENDS)
    return path


def look_up_all(port: int) -> list[int]:
    """Look all users up by nickname and by card, and one that only the shadow has."""
    client = Client(port)
    replies = [client.by_input("@extra")]
    for each in USERS:
        replies += [client.by_input(f"@{each.nickname}"), client.by_card(each.card_number)]
    return sorted({each.status for each in replies})


def shadow(service: Any) -> Any:
    (record,) = ask_admin(service, "/health/ready?verbose").json["shadows"]
    return record


def test_users_of_all_workers_are_counted_once(invoke: Invoke, config: Path) -> None:
    with running(config) as service:
        eventually(lambda: shadow(service)["problem"] is None)  # it is open
        assert look_up_all(service.port) == [200, 404]
        eventually(lambda: sum(shadow(service)["comparisons"].values()) >= 81)
        service.stop()  # after which nothing waits to be written
        log = service.read_log()
    record = json.loads(invoke("migrate", "status", "--json", "-c", config).stdout)
    expected = {"users": 41, "match": 38, "missing": 1, "extra": 1, "differs": 1}
    assert {each: record[each] for each in expected} == expected
    assert (record["fields"], sum(record["totals"].values())) == ({"plan": 1}, 81)
    done = invoke("migrate", "report", "--reveal", "--json", "-c", config)
    assert [each["queries"] for each in json.loads(done.stdout)["users"]] == [
        ["40000000", "@user0"],
        ["@extra"],
        ["40000001", "@user1"],
    ]
    others = [line for line in log.splitlines() if "shadow" in line or "compar" in line]
    assert not [line for line in others if "user" in line or "4000" in line or "extra" in line]
