"""Each symptom of docs/guide/troubleshooting.md is provoked; the commands print what it shows."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from support.http.threaded_server import QuietHandler, QuietServer, serving_in_thread
from support.pages import code_blocks, page
from support.processes.ports import free_port
from support.processes.process import command, eventually
from support.processes.service import CONFIG, FIXTURE, Client, serving
from tornado_idv.service.service import Service

pytestmark = pytest.mark.slow

PAGE = page("docs/guide/troubleshooting.md")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))
BLOCKS = {
    (title, number): block
    for title, text in SECTIONS.items()
    for number, block in enumerate(code_blocks(text, "console"), start=1)
}
BACKENDS = """\
  - {{name: users, kind: yaml, path: users.yaml}}
  - name: crm
    kind: upstream
    base_url: http://127.0.0.1:{port}
    by_nickname: {{url: "/{{nickname}}"}}
    response:
      {{nickname: nickname, card_number: card, plan: plan, not_known_when: error == 'no such user'}}
    timeout: 1s
    cache_ttl: 10ms
admin: {{port: 0}}
"""


class Directory(QuietServer):
    """The directory behind `crm`, whose responses a test chooses."""

    status = 200
    body: bytes | None = None
    may_respond = Event()


class Handler(QuietHandler):
    protocol_version = "HTTP/1.0"  # no connection is left when the server stops
    server: Directory

    def do_GET(self) -> None:  # noqa: N802
        self.server.may_respond.wait(10)
        user = {"nickname": self.path[1:], "card": "4000999988887777", "plan": "Gold"}
        body = json.dumps(user).encode() if self.server.body is None else self.server.body
        self.reply(self.server.status, body)


@dataclass
class Case:
    folder: Path
    service: Service
    directory: Directory

    def stop_directory(self) -> None:
        self.directory.shutdown()
        self.directory.server_close()

    def configure(self, before: str, after: str, name: str = "config.yaml") -> None:
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert before in text
        path.write_text(text.replace(before, after), encoding="utf-8")

    def look_up(self, nickname: str) -> int:
        return Client(self.service.port).by_input(nickname).status

    def run(self, line: str) -> str:
        done = command(
            *line.split()[1:], cwd=self.folder, env={"TORNADO_IDV_CONFIG": "commands.yaml"}
        )
        return done.stdout + done.stderr


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    Directory.may_respond.set()
    (tmp_path / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    with serving_in_thread(Directory(("127.0.0.1", 0), Handler)) as directory:
        text = CONFIG + BACKENDS.format(port=directory.server_port)
        with serving(text, tmp_path) as service:
            _, _, port = str(service.admin_url).rpartition(":")
            used = text.replace("admin: {port: 0}", f"admin: {{port: {port}}}")
            (tmp_path / "commands.yaml").write_text(used, encoding="utf-8")
            yield Case(tmp_path, service, directory)
        directory.may_respond.set()


def wrong_setting(case: Case) -> None:
    case.configure("port: 0,", "prot: 0,")
    (case.folder / "commands.yaml").rename(case.folder / "unused.yaml")
    (case.folder / "config.yaml").rename(case.folder / "commands.yaml")


def port_in_use(case: Case) -> None:
    case.configure("{port: 0,", f"{{port: {case.service.port},", "commands.yaml")


def disabled_key(case: Case) -> None:
    (case.folder / "commands.yaml").write_text("auth: {store: keys.db}\n", encoding="utf-8")
    case.run("tornado-idv keys issue batch --create")
    case.run("tornado-idv keys issue shop")
    case.run("tornado-idv keys disable batch")


def added_user(case: Case) -> None:
    case.directory.status, case.directory.body = 404, b'{"error": "no such user"}'
    assert case.look_up("@dora") == 404
    case.directory.status, case.directory.body = 200, None


def stopped_directory(case: Case) -> None:
    case.stop_directory()
    assert case.look_up("@dora") == 503


def expired_answer(case: Case) -> None:
    assert case.look_up("@carl") == 200
    case.stop_directory()


def slow_directory(case: Case) -> None:
    assert case.look_up("@alice") == 200
    case.directory.may_respond.clear()


def rejected_edit(case: Case) -> None:
    (case.folder / "users.yaml").write_text(FIXTURE + "users: []\n", encoding="utf-8")


def stopped_service(case: Case) -> None:
    _, _, port = str(case.service.admin_url).rpartition(":")
    case.configure(f"{{port: {port}}}", f"{{port: {free_port()}}}", "commands.yaml")


PROVOKED: dict[tuple[str, int], Callable[[Case], None]] = {
    ("The service does not start", 1): wrong_setting,
    ("The service does not start", 2): port_in_use,
    ("Everything is 401", 1): disabled_key,
    ("A user you added is not found", 1): added_user,
    ("Everything is 503", 1): stopped_directory,
    ("An answer is out of date", 1): expired_answer,
    ("Responses are slow", 1): slow_directory,
    ("A reload is refused", 1): partial(Case.configure, before="port: 0,", after="prot: 0,"),
    ("A reload is refused", 2): partial(Case.configure, before="port: 0,", after="port: 1,"),
    ("Degraded though it responds", 1): rejected_edit,
    ("Commands get no response", 1): stopped_service,
}


def test_every_output_of_the_page_is_provoked() -> None:
    assert {*BLOCKS} == {*PROVOKED}


@pytest.mark.parametrize("key", PROVOKED, ids=lambda key: f"{key[0]} {key[1]}")
def test_commands_print_what_the_page_shows(case: Case, key: tuple[str, int]) -> None:
    """Numbers and times differ, and lines that the page leaves out."""
    PROVOKED[key](case)
    for line, expected in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", BLOCKS[key], re.MULTILINE):
        pattern = re.escape(masked(expected)).replace("…\\\n", "(?:.*\n)*")
        printed = ""

        def is_shown(line: str = line, pattern: str = pattern) -> bool:
            nonlocal printed
            printed = masked(case.run(line).replace(f"{case.folder}/", ""))
            return re.fullmatch(pattern, printed) is not None

        try:
            eventually(is_shown)
        except AssertionError:
            assert printed == masked(expected)


def masked(text: str) -> str:
    text = text.replace("commands.yaml", "config.yaml")
    return re.sub(r" +", " ", re.sub(r"\d[\d.]*", "0", text))


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (401, b"{}", "refused (status 401), …"),
        (200, b"<html>", "a response that is not valid JSON"),
    ],
)
def test_reasons_of_a_wrong_response_are_as_in_the_page(
    case: Case, status: int, body: bytes, reason: str
) -> None:
    assert f"| `{reason}`" in SECTIONS["Everything is 503"]
    case.directory.status, case.directory.body = status, body
    assert f"asked crm: {reason.rstrip('…')}" in case.run("tornado-idv explain @alan")


def test_reason_of_an_open_circuit_breaker_is_as_in_the_page(case: Case) -> None:
    case.stop_directory()
    for number in range(5):
        assert case.look_up(f"@alan{number}") == 503
    printed = case.run("tornado-idv explain @alan")
    assert "asked crm: circuit breaker open, next probe in " in printed
    assert "| `circuit breaker open, next probe in …` |" in SECTIONS["Everything is 503"]
