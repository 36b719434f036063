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
  - {name: new, kind: sqlite, path: new.db, shadow: {sample: 100%, rate: 1000/s, state: STATE}}
admin: {port: 0}
logging: {ids: full}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two workers; the shadow lacks a user, has another plan of one, and one more."""
    sqlite_databases.write(tmp_path / "old.db", *USERS)
    other = User("Pro", USERS[1].card_number, USERS[1].nickname)
    sqlite_databases.write(tmp_path / "new.db", other, *USERS[2:], User("Free", "5", "extra"))
    return write(tmp_path, "shadow.db")


def write(folder: Path, state: str) -> Path:
    path = folder / "config.yaml"
    text = CONFIG.replace("port: 0,", "port: 0, workers: 2,") + BACKENDS.replace("STATE", state)
    path.write_text(text)
    return path


def look_up_all(port: int) -> list[int]:
    """Look all users up by nickname and by card, and one that only the shadow has."""
    client = Client(port)
    replies = [client.by_input("@extra")]
    for each in USERS:
        replies += [client.by_input(f"@{each.nickname}"), client.by_card(each.card_number)]
    return sorted({each.status for each in replies})


def status(invoke: Invoke, config: Path) -> dict[str, Any]:
    done = invoke("migrate", "status", "--json", "-c", config)
    assert done.exit_code == 0
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_users_of_all_workers_are_counted_once(invoke: Invoke, config: Path) -> None:
    with running(config) as service:
        eventually(lambda: shadow_problem(service) is None)  # it is open
        assert look_up_all(service.port) == [200, 404]
        eventually(lambda: sum(shadow_results(service).values()) >= 81)
        service.stop()  # after which nothing waits to be written
        log = service.read_log()
    record = status(invoke, config)
    assert record["users"] == 41
    assert {each: record[each] for each in ("match", "missing", "extra", "differs")} == {
        "match": 38,
        "missing": 1,
        "extra": 1,
        "differs": 1,
    }
    assert (record["fields"], sum(record["totals"].values())) == ({"plan": 1}, 81)
    done = invoke("migrate", "report", "--reveal", "--json", "-c", config)
    assert [each["queries"] for each in json.loads(done.stdout)["users"]] == [
        ["40000000", "@user0"],
        ["@extra"],
        ["40000001", "@user1"],
    ]
    others = [line for line in log.splitlines() if "shadow" in line or "compar" in line]
    assert not [line for line in others if "user" in line or "4000" in line or "extra" in line]


def test_file_that_cannot_be_written_fails_no_lookup(
    invoke: Invoke, config: Path, tmp_path: Path
) -> None:
    config = write(tmp_path, "no-folder/shadow.db")
    with running(config) as service:
        assert look_up_all(service.port) == [200, 404]
        problem = f"{tmp_path}/no-folder/shadow.db: cannot be used: No such file or directory"
        eventually(lambda: shadow_problem(service) == problem)
        done = invoke("migrate", "check", "-c", config)
        assert (done.exit_code, done.stdout) == (3, "")
        (tmp_path / "no-folder").mkdir()
        service.stop()
        assert service.read_log().count("no-folder") == 2  # once for each worker
    assert (tmp_path / "no-folder" / "shadow.db").exists()


def shadow_problem(service: Any) -> Any:
    (shadow,) = ask_admin(service, "/health/ready?verbose").json["shadows"]
    return shadow["problem"]


def shadow_results(service: Any) -> dict[str, int]:
    (shadow,) = ask_admin(service, "/health/ready?verbose").json["shadows"]
    results: dict[str, int] = shadow["comparisons"]
    return results
