"""A client of the admin listener, and services that have one."""

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from support.processes.service import CONFIG, USERS
from tornado_idv.keys.token import issue

ADMIN_KEY = issue("operator")
WITH_ADMIN = f"{CONFIG}{USERS}admin: {{port: 0}}\n"
OPEN_TO_ALL = (
    CONFIG.replace(
        "auth:\n  keys:\n",
        f"auth:\n  keys:\n    - {{id: operator, token: {ADMIN_KEY}, scopes: [admin]}}\n",
    )
    + f"{USERS}admin: {{host: 0.0.0.0, port: 0}}\n"
)


class HasAdmin(Protocol):
    admin_url: str | None


def admin_port(service: HasAdmin) -> int:
    assert service.admin_url is not None
    return int(service.admin_url.rpartition(":")[2])


def with_admin_port(folder: Path, port: int, text: str = WITH_ADMIN) -> Path:
    """Write a configuration whose admin listener has this port."""
    before, _, after = text.rpartition("port: 0")
    path = folder / "used.yaml"
    path.write_text(f"{before}port: {port}{after}", encoding="utf-8")
    return path


@dataclass(frozen=True)
class AdminReply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask_admin(
    service: HasAdmin, path: str, record: object = None, *, method: str | None = None, **fields: str
) -> AdminReply:
    """Return the response to a GET, or to a POST of a record; header names with underscores."""
    assert service.admin_url is not None
    connection = http.client.HTTPConnection(service.admin_url.removeprefix("http://"), timeout=10)
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    body = None
    if record is not None:
        body = json.dumps(record)
        headers = {"Content-Type": "application/json", **headers}
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        response = connection.getresponse()
        return AdminReply(response.status, response.headers, response.read())
    finally:
        connection.close()
