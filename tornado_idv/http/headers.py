"""The header fields of one request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tornado.httputil import HTTPHeaders


class RequestHeaders(HTTPHeaders):
    """Header fields as llhttp read them.

    Behaves as Tornado's class, whose constructor would validate every field a second time.
    """

    def __init__(self, fields: list[tuple[bytes, bytes]] = []) -> None:  # noqa: B006 read only
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self.add(name.decode("ascii"), value.rstrip(b" \t").decode("latin-1"))

    def add(self, name: str, value: str, **_: object) -> None:
        self._values.setdefault(name.lower(), []).append(value)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the values joined with commas; `Mapping.get` would raise and catch an error."""
        values = self._values.get(name.lower())
        if values is None:
            return default
        return values[0] if len(values) == 1 else ",".join(values)

    def get_list(self, name: str) -> list[str]:
        return self._values.get(name.lower(), [])

    def get_all(self) -> Iterator[tuple[str, str]]:
        return ((name, value) for name, values in self._values.items() for value in values)

    def __getitem__(self, name: str) -> str:
        return ",".join(self._values[name.lower()])

    def __setitem__(self, name: str, value: str) -> None:
        self._values[name.lower()] = [value]

    def __delitem__(self, name: str) -> None:
        del self._values[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)
