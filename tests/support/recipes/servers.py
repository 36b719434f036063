"""Directories that others wrote, each filled with `USERS` by its own means.

Each is a context that gives the address; behind it the process is gone.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from support.databases.postgres_server import PostgresServer, running_server
from support.http.threaded_server import serving_in_thread
from support.processes.process import TIMEOUT, running
from support.processes.service import KEY, make_database
from support.recipes.peer_process import POSTGRAPHILE, node_program, python_program, started
from tornado_idv import User

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
    with started([*program, *_ON_A_FREE_PORT, "db.json"], folder) as peer:
        yield peer.address


@contextmanager
def scim2_server(folder: Path) -> Iterator[str]:
    """scim2-server, with a token, filled by SCIM's own requests."""
    program = python_program("scim2-server")
    command = [*program, "--port", "{port}", "--bearer-token", SCIM_TOKEN]
    headers = {"Authorization": f"Bearer {SCIM_TOKEN}", "Content-Type": "application/scim+json"}
    with started(command, folder, headers) as peer:
        for user in USERS:
            peer.keep("POST", "/v2/Users", _scim_user(user))
        yield peer.address


def _scim_user(user: User) -> Mapping[str, Any]:
    profile = {"profileUrl": user.profile_url} if user.profile_url else {}
    return {
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User", _ENTERPRISE],
        "userName": user.nickname,
        "userType": user.plan,
        _ENTERPRISE: {"employeeNumber": user.card_number},
        **profile,
    }


@contextmanager
def pouchdb_server(folder: Path) -> Iterator[str]:
    """pouchdb-server, which speaks CouchDB's protocol, with a password and two indexes."""
    administrators = {"admins": {"reader": COUCH_PASSWORD}}
    (folder / "config.json").write_text(json.dumps(administrators), encoding="utf-8")
    program = node_program("pouchdb-server/bin/pouchdb-server")
    proof = base64.b64encode(f"reader:{COUCH_PASSWORD}".encode()).decode()
    headers = {"Authorization": f"Basic {proof}", "Content-Type": "application/json"}
    with started([*program, *_ON_A_FREE_PORT, "--in-memory"], folder, headers) as peer:
        peer.keep("PUT", "/people", {})
        for field in ("login", "card"):
            peer.keep("POST", "/people/_index", {"index": {"fields": [field]}})
        for user in USERS:
            row = {"login": user.nickname, "card": user.card_number, "plan": user.plan}
            peer.keep("POST", "/people", row)
        yield peer.address


@contextmanager
def json_graphql_server(folder: Path) -> Iterator[str]:
    """json-graphql-server over a file."""
    rows = [{"id": user.nickname, "card": user.card_number, "plan": user.plan} for user in USERS]
    (folder / "data.json").write_text(json.dumps({"users": rows}), encoding="utf-8")
    program = node_program("json-graphql-server/bin/json-graphql-server.cjs")
    with started([*program, "data.json", *_ON_A_FREE_PORT], folder) as peer:
        yield peer.address


@contextmanager
def postgraphile(folder: Path) -> Iterator[str]:
    """PostGraphile over PostgreSQL."""
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
        with started([*program, *options, *serving], folder) as peer:
            yield peer.address, server


@contextmanager
def keycloak_imitation(_: Path) -> Iterator[str]:
    """The searches of Keycloak's admin API for users, and its token endpoint, in a thread."""
    with serving_in_thread(ThreadingHTTPServer(("127.0.0.1", 0), _Keycloak)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


class _Imitation(BaseHTTPRequestHandler):
    def _respond(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json;charset=UTF-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def asked(self) -> tuple[str, dict[str, str]]:
        """Return the path, and the parameters of the query."""
        path, _, query = self.path.partition("?")
        return path, {name: value for name, (value,) in parse_qs(query).items()}

    def log_message(self, *_: object) -> None:
        pass


class _Keycloak(_Imitation):
    rows = tuple(
        {
            "username": user.nickname.lower(),
            "enabled": True,
            "attributes": {"card_number": [user.card_number], "plan": [user.plan]},
        }
        for user in USERS
    )

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        proof = base64.b64encode(f"tornado-idv:{KEYCLOAK_SECRET}".encode()).decode()
        is_known = self.headers["Authorization"] == f"Basic {proof}"
        if self.path != "/realms/staff/protocol/openid-connect/token":
            self._respond(404, {"error": "Realm does not exist"})
        elif is_known and form["grant_type"] == ["client_credentials"]:
            self._respond(200, {"access_token": "t", "expires_in": 300, "token_type": "Bearer"})
        else:
            self._respond(401, {"error": "unauthorized_client"})

    def do_GET(self) -> None:
        path, asked = self.asked()
        if self.headers["Authorization"] != "Bearer t":
            self._respond(401, {"error": "HTTP 401 Unauthorized"})
        elif path != "/admin/realms/staff/users":
            self._respond(404, {"error": "Realm not found."})
        else:
            self._respond(200, [row for row in self.rows if self._matches(row, asked)])

    @staticmethod
    def _matches(row: Mapping[str, Any], asked: Mapping[str, str]) -> bool:
        attribute, _, value = asked.get("q", "").partition(":")
        return (
            asked.get("username", row["username"]).lower() == row["username"]
            and (not attribute or row["attributes"].get(attribute) == [value])
            and asked["enabled"] == "true"
        )


class Directus(ThreadingHTTPServer):
    """Reads the items of a collection as Directus does, of those that the token may see."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Items)
        self.users: tuple[User, ...] = USERS
        self.archived: set[str] = set()
        self.is_forbidden = False


class _Items(_Imitation):
    server: Directus

    def do_GET(self) -> None:
        path, asked = self.asked()
        if self.headers["Authorization"] != f"Bearer {DIRECTUS_TOKEN}":
            self._fail(401, "Invalid user credentials.", "INVALID_CREDENTIALS")
        elif path != "/items/members":
            self._fail(404, f"Route {path} doesn't exist.", "ROUTE_NOT_FOUND")
        elif self.server.is_forbidden:
            self._fail(403, "You don't have permission to access this.", "FORBIDDEN")
        else:
            rows = [row for row in self._rows() if self._matches(row, asked)]
            counts = {"total_count": len(self.server.users), "filter_count": len(rows)}
            meta = {name: counts[name] for name in asked["meta"].split(",")}
            self._respond(200, {"meta": meta, "data": rows[: int(asked["limit"])]})

    def _rows(self) -> Iterator[dict[str, str]]:
        for user in self.server.users:
            row = {"login": user.nickname, "card": user.card_number, "plan": user.plan}
            archived = user.nickname in self.server.archived
            yield {**row, "status": "archived" if archived else "published"}

    @staticmethod
    def _matches(row: Mapping[str, str], asked: Mapping[str, str]) -> bool:
        """Coerce values as `parseFilter` does; LIKE has `_` for any character."""
        words = {"true": True, "false": False, "null": None, "NULL": None}
        texts = {True: "true", False: "false", None: "null"}
        for name, text in asked.items():
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

    def _fail(self, status: int, message: str, code: str) -> None:
        error = {"message": message, "extensions": {"code": code}}
        self._respond(status, {"errors": [error]})


@contextmanager
def directus_imitation(_: Path) -> Iterator[str]:
    """The items of Directus, in a thread."""
    with serving_in_thread(Directus()) as server:
        yield f"http://127.0.0.1:{server.server_port}"


class PocketBase(ThreadingHTTPServer):
    """Reads the records of a collection as PocketBase does, for the users who have logged in."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Records)
        self.tokens: list[str] = []
        self.logins = 0

    def log_in(self) -> str:
        """Return a JWT for an hour; the tokens of before are still valid."""
        self.logins += 1
        claims = {"exp": int(time.time()) + 3600, "id": f"login{self.logins}"}
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        self.tokens.append(f"e30.{payload}.signature")
        return self.tokens[-1]


class _Records(_Imitation):
    server: PocketBase
    rows = (
        *({"login": user.nickname, "card": user.card_number, "plan": user.plan} for user in USERS),
        {"login": "witness", "card": "1", "plan": "Free"},
    )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/api/collections/users/auth-with-password":
            self._fail(404, "The requested resource wasn't found.")
        elif body == {"identity": "tornado-idv", "password": POCKETBASE_PASSWORD}:
            self._respond(200, {"token": self.server.log_in(), "record": {"id": "x"}})
        else:
            self._fail(400, "Failed to authenticate.")

    def do_GET(self) -> None:
        path, asked = self.asked()
        if path != "/api/collections/members/records":
            self._fail(404, "The requested resource wasn't found.")
            return
        conditions = [
            re.fullmatch("(\\w+)='([^']*)'", each) for each in asked["filter"].split(" || ")
        ]
        if not all(each and each[1] in self.rows[0] for each in conditions):
            self._fail(400, "Invalid filter parameters.")
            return
        # A token that is not valid, or has expired, is no error: the rule hides all records.
        is_known = self.headers["Authorization"].removeprefix("Bearer ") in self.server.tokens
        rows = [
            row
            for row in self.rows
            if is_known and any(row[each[1]] == each[2] for each in conditions if each)
        ]
        size = int(asked["perPage"])
        page = {"page": 1, "perPage": size, "totalItems": len(rows), "items": rows[:size]}
        self._respond(200, page)

    def _fail(self, status: int, message: str) -> None:
        self._respond(status, {"code": status, "message": message, "data": {}})


@contextmanager
def pocketbase_imitation(_: Path) -> Iterator[str]:
    """The records and the login of PocketBase, in a thread."""
    with serving_in_thread(PocketBase()) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@contextmanager
def itself(folder: Path) -> Iterator[str]:
    """This service over a database, as a process of its own."""
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
