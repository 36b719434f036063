"""Directories that others wrote, each filled with `USERS` by its own means.

Each is a context that gives the address; behind it the process is gone. `make test-tools` installs
the servers; what needs one that is not there is skipped.
"""

import base64
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

import pytest

from support.databases.postgres_server import PostgresServer, running_server
from support.http.threaded_server import serving_in_thread
from support.processes.ports import free_port
from support.processes.process import TIMEOUT, running
from support.processes.proxies import find_tool, not_installed, running_program
from support.processes.service import KEY, make_database
from tornado_idv import User

ROOT = Path(__file__).parents[3]
MODULES = ROOT / "tests" / "recipes" / "node_modules"
POSTGRAPHILE = ROOT / "tests" / "recipes" / "postgraphile" / "node_modules"
PROGRAMS = ROOT / ".venv-recipes" / "bin"

Serve = Callable[[Path], AbstractContextManager[str]]
"""Runs a server in a folder, and gives its address."""

PROFILE = "https://people.example/of/alice"
USERS = (
    User("Free", "4000123412341234", "alice", PROFILE),
    User("Pro", "0012345670", "a.b-c_D"),
    User("Free", "9000000000000001", "idv-canary"),
)
"""The last one is the canary of the recipes."""
LEVELS = {"Free": 1, "Pro": 2}

SCIM_TOKEN = "a-token-for-staff"
DIRECTUS_TOKEN = "a-static-token"
KEYCLOAK_SECRET = "a-secret-of-the-client"
POCKETBASE_PASSWORD = "a-password-of-idv"
COUCH_PASSWORD = "a password: of readers"

_ON_A_FREE_PORT = ("--host", "127.0.0.1", "--port", "{port}")
_ENTERPRISE = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[str]:
    """Run a server in a folder; ``{port}`` in its command stands for a free port."""
    port = free_port()
    words = [word.replace("{port}", str(port)) for word in command]
    with running_program(["env", "-C", str(folder), *words], port, folder / "server.log"):
        yield f"http://127.0.0.1:{port}"


def keep(url: str, document: Any, headers: Mapping[str, str], method: str = "POST") -> None:
    """Have a server keep a document; a status of failure is an error."""
    request = Request(url, json.dumps(document).encode(), dict(headers), method=method)
    urlopen(request, timeout=TIMEOUT).close()


def node_program(path: str, modules: Path = MODULES) -> Sequence[str]:
    """The words that run a program of the folder ``node_modules``; skips where it is not."""
    if not (modules / path).exists():
        pytest.skip(not_installed(path.partition("/")[0]))
    return [find_tool("node"), str(modules / path)]


def python_program(name: str) -> Sequence[str]:
    """The words that run a program of the recipes' own environment; skips where it is not."""
    if not (PROGRAMS / name).exists():
        pytest.skip(not_installed(name))
    return [str(PROGRAMS / "python"), "-I", str(PROGRAMS / name)]


def row_of(user: User) -> dict[str, str]:
    return {"login": user.nickname, "card": user.card_number, "plan": user.plan}


@contextmanager
def json_server(folder: Path) -> Iterator[str]:
    """json-server over a file: a REST interface with filters."""
    rows = [
        {
            "id": user.nickname,
            "card": user.card_number,
            "subscription": {"name": user.plan, "level": LEVELS[user.plan]},
            "links": {"profile": user.profile_url},
        }
        for user in USERS
    ]
    (folder / "db.json").write_text(json.dumps({"users": rows}), encoding="utf-8")
    program = node_program("json-server/lib/cli/bin.js")
    with started([*program, *_ON_A_FREE_PORT, "db.json"], folder) as address:
        yield address


@contextmanager
def scim2_server(folder: Path) -> Iterator[str]:
    """scim2-server, with a token, filled by SCIM's own requests."""
    program = python_program("scim2-server")
    command = [*program, "--port", "{port}", "--bearer-token", SCIM_TOKEN]
    headers = {"Authorization": f"Bearer {SCIM_TOKEN}", "Content-Type": "application/scim+json"}
    with started(command, folder) as address:
        for user in USERS:
            row: dict[str, Any] = {
                "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User", _ENTERPRISE],
                "userName": user.nickname,
                "userType": user.plan,
                _ENTERPRISE: {"employeeNumber": user.card_number},
            }
            row |= {"profileUrl": user.profile_url} if user.profile_url else {}
            keep(f"{address}/v2/Users", row, headers)
        yield address


@contextmanager
def pouchdb_server(folder: Path) -> Iterator[str]:
    """pouchdb-server, which speaks CouchDB's protocol, with a password and two indexes."""
    administrators = {"admins": {"reader": COUCH_PASSWORD}}
    (folder / "config.json").write_text(json.dumps(administrators), encoding="utf-8")
    program = node_program("pouchdb-server/bin/pouchdb-server")
    proof = base64.b64encode(f"reader:{COUCH_PASSWORD}".encode()).decode()
    headers = {"Authorization": f"Basic {proof}", "Content-Type": "application/json"}
    with started([*program, *_ON_A_FREE_PORT, "--in-memory"], folder) as address:
        keep(f"{address}/people", {}, headers, "PUT")
        for field in ("login", "card"):
            keep(f"{address}/people/_index", {"index": {"fields": [field]}}, headers)
        for user in USERS:
            keep(f"{address}/people", row_of(user), headers)
        yield address


@contextmanager
def json_graphql_server(folder: Path) -> Iterator[str]:
    rows = [{"id": user.nickname, "card": user.card_number, "plan": user.plan} for user in USERS]
    (folder / "data.json").write_text(json.dumps({"users": rows}), encoding="utf-8")
    program = node_program("json-graphql-server/bin/json-graphql-server.cjs")
    with started([*program, "data.json", *_ON_A_FREE_PORT], folder) as address:
        yield address


@contextmanager
def postgraphile(folder: Path) -> Iterator[str]:
    with postgraphile_over_database(folder) as (address, _):
        yield address


@contextmanager
def postgraphile_over_database(folder: Path) -> Iterator[tuple[str, PostgresServer]]:
    """PostGraphile, whose role is not the owner of the table, and its PostgreSQL."""
    program = node_program("postgraphile/cli.js", POSTGRAPHILE)
    with running_server() as server:
        rows = ", ".join(
            f"('{user.nickname}', '{user.card_number}', '{user.plan}')"
            for user in (*USERS, User("Free", "1", "witness"))
        )
        server.run(
            "CREATE TABLE members (login text PRIMARY KEY, card text NOT NULL UNIQUE, plan text);"
            f"INSERT INTO members VALUES {rows}; GRANT SELECT ON members TO idv;"
        )
        options = ("--connection", server.dsn("postgres"), "--schema", "public")
        serving = ("--host", "127.0.0.1", "--port", "{port}", "--disable-query-log")
        with started([*program, *options, *serving], folder) as address:
            yield address, server


class Asked(NamedTuple):
    path: str
    query: Mapping[str, str]
    body: str
    authorization: str


Answer = tuple[int, Any]
"""A status, and a JSON document."""


class Imitation(ThreadingHTTPServer, ABC):
    """Answers as a server that is not installed, in a thread."""

    users: Sequence[User] = USERS

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)

    @abstractmethod
    def answer(self, asked: Asked) -> Answer:
        """Return the answer to a request."""

    @classmethod
    @contextmanager
    def serve(cls, _: Path) -> Iterator[str]:
        with serving_in_thread(cls()) as server:
            yield f"http://127.0.0.1:{server.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Imitation

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        parameters = {name: value for name, (value,) in parse_qs(query).items()}
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        asked = Asked(path, parameters, sent, self.headers.get("Authorization", ""))
        status, document = self.server.answer(asked)
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json;charset=UTF-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


class Keycloak(Imitation):
    """The searches of its admin API for users, and its token endpoint."""

    def answer(self, asked: Asked) -> Answer:
        if asked.path == "/realms/staff/protocol/openid-connect/token":
            proof = base64.b64encode(f"tornado-idv:{KEYCLOAK_SECRET}".encode()).decode()
            is_grant = asked.body == "grant_type=client_credentials"
            if is_grant and asked.authorization == f"Basic {proof}":
                return 200, {"access_token": "t", "expires_in": 300, "token_type": "Bearer"}
            return 401, {"error": "unauthorized_client"}
        if asked.authorization != "Bearer t":
            return 401, {"error": "HTTP 401 Unauthorized"}
        if asked.path != "/admin/realms/staff/users":
            return 404, {"error": "Realm not found."}
        return 200, [row for row in map(self._row, self.users) if self._matches(row, asked.query)]

    @staticmethod
    def _row(user: User) -> Mapping[str, Any]:
        attributes = {"card_number": [user.card_number], "plan": [user.plan]}
        return {"username": user.nickname.lower(), "enabled": True, "attributes": attributes}

    @staticmethod
    def _matches(row: Mapping[str, Any], query: Mapping[str, str]) -> bool:
        attribute, _, value = query.get("q", "").partition(":")
        return (
            query.get("username", row["username"]).lower() == row["username"]
            and (not attribute or row["attributes"].get(attribute) == [value])
            and query["enabled"] == "true"
        )


class Directus(Imitation):
    """Reads the items of a collection, of those that the token may see."""

    archived: Collection[str] = ()
    is_forbidden = False

    def answer(self, asked: Asked) -> Answer:
        if asked.authorization != f"Bearer {DIRECTUS_TOKEN}":
            return self._error(401, "Invalid user credentials.", "INVALID_CREDENTIALS")
        if asked.path != "/items/members":
            return self._error(404, f"Route {asked.path} doesn't exist.", "ROUTE_NOT_FOUND")
        if self.is_forbidden:
            return self._error(403, "You don't have permission to access this.", "FORBIDDEN")
        rows = [row for row in map(self._row, self.users) if self._matches(row, asked.query)]
        counts = {"total_count": len(self.users), "filter_count": len(rows)}
        meta = {name: counts[name] for name in asked.query["meta"].split(",")}
        return 200, {"meta": meta, "data": rows[: int(asked.query["limit"])]}

    def _row(self, user: User) -> dict[str, str]:
        status = "archived" if user.nickname in self.archived else "published"
        return {**row_of(user), "status": status}

    @staticmethod
    def _matches(row: Mapping[str, str], query: Mapping[str, str]) -> bool:
        """Coerce values as `parseFilter` does; LIKE has `_` for any character."""
        words = {"true": True, "false": False, "null": None, "NULL": None}
        texts = {True: "true", False: "false", None: "null"}
        for name, text in query.items():
            if found := re.fullmatch(r"filter\[(\w+)\]\[(\w+)\]", name):
                value, operator = words.get(text, text), found[2]
                if operator == "_eq":
                    pattern = re.escape(value) if isinstance(value, str) else "(?!)"
                else:
                    like = re.escape(texts[value] if not isinstance(value, str) else value)
                    like = like.replace("_", ".")
                    pattern = f"{like}.*" if operator == "_starts_with" else f".*{like}"
                if not re.fullmatch(pattern, row[found[1]]):
                    return False
        return True

    @staticmethod
    def _error(status: int, message: str, code: str) -> Answer:
        return status, {"errors": [{"message": message, "extensions": {"code": code}}]}


class PocketBase(Imitation):
    """Reads the records of a collection, for the users who have logged in."""

    users = (*USERS, User("Free", "1", "witness"))
    logins = 0
    valid_from = 0

    def answer(self, asked: Asked) -> Answer:
        if asked.path == "/api/collections/users/auth-with-password":
            login = {"identity": "tornado-idv", "password": POCKETBASE_PASSWORD}
            if json.loads(asked.body) != login:
                return 400, {"message": "Failed to authenticate."}
            self.logins += 1
            return 200, {"token": self._token(self.logins), "record": {"id": "x"}}
        if asked.path != "/api/collections/members/records":
            return 404, {"message": "The requested resource wasn't found."}
        conditions = [
            re.fullmatch("(login|card|plan)='([^']*)'", each)
            for each in asked.query["filter"].split(" || ")
        ]
        if not all(conditions):
            return 400, {"message": "Invalid filter parameters."}
        # A token that is not valid, or has expired, is no error: the rule hides all records.
        tokens = [f"Bearer {self._token(n)}" for n in range(self.valid_from, self.logins + 1)]
        rows = [
            row
            for row in map(row_of, self.users)
            if asked.authorization in tokens
            and any(row[each[1]] == each[2] for each in conditions if each)
        ]
        size = int(asked.query["perPage"])
        return 200, {"page": 1, "perPage": size, "totalItems": len(rows), "items": rows[:size]}

    @staticmethod
    def _token(number: int) -> str:
        claims = {"exp": 2**32, "id": f"login{number}"}
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"e30.{payload}.signature"


@contextmanager
def itself(folder: Path) -> Iterator[str]:
    rows = [(user.nickname, user.card_number, user.plan, user.profile_url) for user in USERS]
    make_database(folder / "users.db", *rows)
    config = folder / "config.yaml"
    config.write_text(
        "profile_sites: [https://profiles.example]\n"
        "server: {port: 0}\n"
        f"auth: {{keys: [{{id: proxy, token: {KEY}}}]}}\n"
        "backends: [{name: users, kind: sqlite, path: users.db}]\n",
        encoding="utf-8",
    )
    with running(config, timeout=10 * TIMEOUT) as service:
        yield f"http://127.0.0.1:{service.port}"
