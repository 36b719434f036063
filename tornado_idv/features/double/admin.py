"""The admin endpoints of the test double. They exist only in demo mode."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, ValidationError

from tornado_idv.admin.listener import AdminError, AdminHandler
from tornado_idv.admin.operations import Operations
from tornado_idv.double.fault import Fault
from tornado_idv.features.double.state import Double
from tornado_idv.model import Query, User
from tornado_idv.options import Options

_ALL = "all"
"""The path segment that stands for all queries, as in ``/double/faults/all``."""
_ModelT = TypeVar("_ModelT", bound=Options)


class _User(Options):
    plan: Annotated[str, Field(min_length=1)]
    card_number: str
    profile_url: Annotated[str, Field(pattern="^https?://")] | None = None


class DoubleHandler(AdminHandler):
    """Base class of the endpoints of the test double."""

    @property
    def double(self) -> Double:
        return cast("Double", self.settings["parts"][Double.name])

    def query(self, text: str) -> Query:
        """Parse an identifier in a path or body. Raises `InvalidFormat`."""
        return self.operations.settings.make_identifiers().parse_any(text)

    def read(self, model: type[_ModelT]) -> _ModelT:
        """Parse the request body as an instance of ``model``. Raises `AdminError`."""
        try:
            return model.model_validate(self.record())
        except ValidationError as error:
            known = ", ".join(model.model_fields)
            texts = {"extra_forbidden": f"this member is not known; there are {known}"}
            message = "; ".join(
                ".".join(map(str, each["loc"]))
                + ": "
                + texts.get(each["type"], each["msg"].removeprefix("Value error, "))
                for each in error.errors()
            )
            raise AdminError(message.removeprefix(": ")) from None

    def send_done(self, *, done: bool = True) -> None:
        """Report that a change is done. If nothing was changed (``done`` is false), send 404."""
        if not done:
            raise AdminError("There is no such user or fault", 404, "not_set")
        self.send({"status": "ok"})


class StateHandler(DoubleHandler):
    """Lists the users and faults of the double. DELETE removes them, and empties the journal."""

    allowed = ("GET", "DELETE")

    async def get(self) -> None:
        double = self.double
        faults = {
            query.text if query else _ALL: {
                **fault.model_dump(exclude_defaults=True),
                "injected": double.injected[fault],
            }
            for query, fault in double.faults.items()
        }
        self.send({"users": [query.text for query in double.users], "faults": faults})

    async def delete(self) -> None:
        self.double.reset()
        self.send_done()


class RequestsHandler(DoubleHandler):
    """Lists the requests of the journal, oldest first, with the identifiers that they looked up."""

    async def get(self) -> None:
        self.send({"requests": [*self.double.requests]})


class UserHandler(DoubleHandler):
    """Adds or removes a user of the double by nickname. Users of backends are not changed."""

    allowed = ("PUT", "DELETE")

    async def put(self, name: str) -> None:
        record = self.read(_User)
        if not (name.startswith("@") and record.card_number.isdigit()):
            message = "A user needs a nickname with @ in the path, and a card_number of digits"
            raise AdminError(message)
        nickname, card = self.query(name), self.query(record.card_number)
        users = self.double.users
        if card in users and users[card] is not users.get(nickname):
            raise AdminError("card_number: belongs to another added user; remove that user first")
        user = User(nickname=name.removeprefix("@"), **record.model_dump())
        self.double.set_user(user, nickname, card)
        self.send_done()

    async def delete(self, name: str) -> None:
        self.send_done(done=self.double.remove_user(self.query(name)))


class FaultHandler(DoubleHandler):
    """Sets or removes the fault for lookups of one nickname or card number, or for all lookups."""

    allowed = ("PUT", "DELETE")

    async def put(self, text: str) -> None:
        self.double.faults[self._key(text)] = self.read(Fault)
        self.send_done()

    async def delete(self, text: str) -> None:
        self.send_done(done=self.double.faults.pop(self._key(text), None) is not None)

    def _key(self, text: str) -> Query | None:
        return None if text == _ALL else self.query(text)


ROUTES: dict[str, type[DoubleHandler]] = {
    "/double": StateHandler,
    "/double/requests": RequestsHandler,
    "/double/users/([^/]+)": UserHandler,
    "/double/faults/([^/]+)": FaultHandler,
}


@asynccontextmanager
async def admin_routes(
    _: Operations, settings: dict[str, Any]
) -> AsyncIterator[dict[str, type[DoubleHandler]]]:
    """Yield the routes of the double, or none outside of demo mode."""
    yield ROUTES if Double.name in settings.get("parts", ()) else {}
