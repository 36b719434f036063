"""Operations of the service for the admin listener, in this process or in its workers."""

from collections.abc import Mapping
from typing import Any, Protocol

from tornado_idv.admin.report import ReloadResult, Report
from tornado_idv.config.settings import Settings
from tornado_idv.errors import IdvError
from tornado_idv.keys.ring import KeyRing
from tornado_idv.model import Query

Record = dict[str, Any]


class OperationFailed(IdvError):
    """Raised if a worker cannot execute an operation. The message has the worker and the reason."""


class Operations(Protocol):
    """Operations on the service, for handlers. ``settings`` are the current settings."""

    settings: Settings

    @property
    def ring(self) -> KeyRing: ...

    async def report(self, *, take_lag: bool = False) -> Report:
        """Return the state of the service. ``take_lag`` resets the maximum delay of the event loop.

        Raises `OperationFailed`.
        """

    async def purge(self, target: Record) -> bool:
        """Drop cached answers. ``target`` is a valid body of ``POST /cache/purge``.

        Return false if the shared cache has not yet received the purge for other services. Raises
        `OperationFailed` if some answers remain in this service.
        """

    async def reload(self, **audited: str | None) -> ReloadResult:
        """Reload the configuration. ``audited`` are fields for the audit log."""

    async def explain(self, query: Record) -> Record:
        """Return the responses of the backends to a valid body of ``POST /explain``.

        Raises `OperationFailed`.
        """


def parse_query(settings: Settings, record: Mapping[str, str]) -> Query:
    """Return the query of a body with ``input``, ``nickname`` or ``card_number``.

    Raises `InvalidFormat`.
    """
    identifiers = settings.make_identifiers()
    if "input" in record:
        return identifiers.parse_input(record["input"])
    if "nickname" in record:
        return identifiers.parse_nickname(record["nickname"].removeprefix("@"))
    return identifiers.parse_card(record["card_number"])
