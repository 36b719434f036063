"""The guide on migrations is true: it is followed whole, with 10,000 users under traffic.

No request fails, no answer is wrong, what differs is found before the switch, and the ways back
work.
"""

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from docs_tutorial import Walk, walk

from support.databases.postgres_server import Database
from support.http.threaded_server import QuietHandler, QuietServer, serving_in_thread
from support.pages import page
from support.processes.process import eventually
from tornado_idv.client import Client, ClientError, User

pytestmark = [pytest.mark.slow, pytest.mark.ci]

PAGE = page("docs/guide/migrate.md")
Person = tuple[str, str, str]
"""Nickname, card number and plan."""
PEOPLE: list[Person] = [
    ("idv-canary", "9000000000000001", "Free"),
    *((f"user{i}", f"{4_000_000_000 + i}", f"Plan {i % 7}") for i in range(1, 10_000)),
]
DIFFERS, MISSING, EXTRA = 7, 8, -1
"""Numbers of people whose row in the first export is wrong; a number below 0 has no person."""


class _Crm(QuietServer):
    """The old directory, with the API of the tutorial on caching proxies.

    While it is ``down`` it responds 503.
    """

    request_queue_size = 128

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _CrmHandler)
        self.by_login = {person[0]: person for person in PEOPLE}
        self.by_card = {person[1]: person for person in PEOPLE}
        self.down = False


class _CrmHandler(QuietHandler):
    server: _Crm

    def do_GET(self) -> None:  # noqa: N802
        url, status = urlsplit(self.path), 200
        login = url.path.removeprefix("/people").lstrip("/")
        record: object = {"error": "no such person"}
        if self.server.down:
            status, record = 503, {"error": "maintenance"}
        elif not login:
            found = self.server.by_card.get(parse_qs(url.query)["card"][0])
            record = {"items": [_record(found)] if found else []}
        elif person := self.server.by_login.get(login):
            record = _record(person)
        else:
            status = 404
        self.reply(status, json.dumps(record).encode())


def _record(person: Person) -> dict[str, Any]:
    login, card, plan = person
    return {"login": login, "card": card, "subscription": {"name": plan}}


@dataclass
class _Traffic:
    """Clients that look people up, and compare the answers with the truth.

    ``wrong`` has the numbers of those with another answer, and failed requests.
    """

    client: Client
    count: int = 0
    rounds: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.stop.wait(0.1):
            self.rounds[seed] += 1
            chosen = [chance.randrange(-50, len(PEOPLE)) for _ in range(20)]
            asked = {_nickname(number): number for number in (DIFFERS, MISSING, EXTRA, *chosen)}
            try:
                for result in self.client.find_many(asked):
                    self._check(asked[result.identifier], result.user, result.error)
                number = max(chosen)
                self._check(number, self.client.find_card(PEOPLE[number][1]))
            except ClientError as error:
                self.wrong.append(type(error).__name__)

    def wait_for(self, count: int) -> None:
        """Wait until so many further people were looked up."""
        target = self.count + count
        eventually(lambda: self.count >= target)

    def settle(self) -> None:
        """Wait until each lookup that runs now, maybe in the configuration before, has ended."""
        before = {**self.rounds}
        eventually(lambda: all(self.rounds[seed] > before[seed] for seed in before))

    def _check(self, number: int, user: User | None, error: ClientError | None = None) -> None:
        self.count += 1
        expected = PEOPLE[number] if number >= 0 else None
        found = user and (user.nickname.removeprefix("@"), user.card_number, user.plan)
        if error is not None or found != expected:
            self.wrong.append(f"{number}: {error or found}")


def _nickname(number: int) -> str:
    return f"@{PEOPLE[number][0]}" if number >= 0 else f"@nobody{-number}"


@contextmanager
def traffic(url: str, key: str) -> Iterator[_Traffic]:
    """Look people up from two threads within; a wrong answer or a failed request fails."""
    with Client(url, key, deadline=20.0) as client:
        running = _Traffic(client)
        threads = [threading.Thread(target=running.run, args=[seed]) for seed in range(2)]
        for each in threads:
            each.start()
        try:
            yield running
        finally:
            running.stop.set()
            for each in threads:
                each.join()
        assert running.wrong == []


@dataclass
class Guide:
    """The page, followed in ``folder``."""

    page: Walk
    folder: Path

    def follow(self, mark: str) -> None:
        self.page.text, found, rest = self.page.text.partition(mark)
        assert found
        if "```" in self.page.text:
            self.page.follow()
        self.page.text = rest

    def run(self, command: str) -> str:
        code, output = self.page.shell.run(command)
        assert code == 0, output
        return output

    def undo(self) -> None:
        """Run the command behind "To undo it" in the rest of this step."""
        step, *_ = self.page.text.split("\n## ")
        (command,) = re.findall(r"\*\*To undo it:\*\* `(.*?)`", step)
        self.run(command)

    def remove_crm(self) -> None:
        """Do what the last step says in words."""
        file = self.folder / "config.yaml"
        before, _, backend = file.read_text(encoding="utf-8").partition("  - name: crm\n")
        rest = backend.partition("  - name: members\n")[1:]
        file.write_text(before + "".join(rest), encoding="utf-8")
        self.run("tornado-idv reload && rm shadow.db shadow-crm.db")

    def status(self, backend: str = "members") -> dict[str, Any]:
        text = self.run(f"tornado-idv migrate status {backend} --json")
        record: dict[str, Any] = json.loads(text)
        return record

    def export(self, *, is_right: bool) -> None:
        """Write the export of the old directory."""
        rows = list(PEOPLE)
        if not is_right:
            nickname, card_number, _ = rows[DIFFERS]
            rows[DIFFERS] = nickname, card_number, "Wrong"
            rows[MISSING] = _nickname(EXTRA).removeprefix("@"), "9999999999", "Free"
        lines = ("nickname,card_number,plan", *map(",".join, rows))
        (self.folder / "people.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def guide(database: Database, tmp_path: Path) -> Iterator[Guide]:
    """The page, and the service that it begins with."""
    with walk(PAGE, tmp_path) as page:
        # Many lookups are compared in a short time, and the cache answers few of them.
        for old, new in (
            ("sample: 20%", "sample: 100%, rate: 5000/second"),
            ("\nauth: {", "\ncache: {ttl: 500ms, negative_ttl: 500ms}\nauth: {"),
            ("server: {", "server: {request_timeout: 20s, "),
            ("canary: {", "timeout: 20s\n    canary: {"),
        ):
            assert old in page.text
            page.text = page.text.replace(old, new)
        config, page.text = page.text.split("```yaml\n", 1)[1].split("```", 1)
        (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
        database.clear("GRANT CREATE ON SCHEMA public TO idv;")
        (tmp_path / "crm.token").write_text("s3cret", encoding="utf-8")
        (tmp_path / "members.dsn").write_text(database.dsn, encoding="utf-8")
        yield Guide(page, tmp_path)


def test_migration(guide: Guide, database: Database) -> None:
    ports = guide.page.ports
    key = guide.run("tornado-idv keys issue shop --create 2> issue.log").strip()
    with serving_in_thread(_Crm(int(ports["9000"]))) as crm:
        guide.page.start("tornado-idv serve")
        with traffic(f"http://127.0.0.1:{ports['8080']}", key) as running:
            guide.export(is_right=False)
            guide.follow("\n## 3. ")
            eventually((guide.folder / "shadow.db").exists)  # it is made in the background
            kinds = ("differs", "missing", "extra")
            eventually(lambda: [guide.status()[each] for each in kinds] == [1, 1, 1])
            guide.follow("\n## 4. ")
            guide.export(is_right=True)
            guide.follow("\nWait until ")
            eventually(lambda: guide.status()["users"] >= 1000, 60)
            guide.follow("\n## 5. ")
            guide.follow("\nNo request fails")
            running.settle()
            crm.down = True  # which no client notices
            running.wait_for(500)
            crm.down = False
            eventually(lambda: guide.status("crm")["match"] > 0)
            eventually(lambda: guide.status("crm")["totals"].get("target_failed", 0) > 0)
            guide.remove_crm()
            crm.down = True
            running.wait_for(500)
            crm.down = False
            guide.undo()
            running.settle()
            database.run("DELETE FROM users")
            running.wait_for(500)
