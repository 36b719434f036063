"""The handler of lookups by proxies. Proxies read only the status and the header fields."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from urllib.parse import quote

from msgspec.structs import replace

from tornado_idv.config.settings import Settings
from tornado_idv.errors import InvalidFormat
from tornado_idv.features.verify.options import VerifyOptions
from tornado_idv.options import as_type
from tornado_idv.web.app import API, Route
from tornado_idv.web.identify import LookupHandler
from tornado_idv.web.lookups import IDENTIFY_CARD, IDENTIFY_URL, ApiContext, Operation
from tornado_idv.web.response import Result

REQUEST_FIELDS: Mapping[str, Operation] = {"X-Idv-Input": IDENTIFY_URL, "X-Idv-Card": IDENTIFY_CARD}
"""Request header fields with an identifier, and the operation for each of them."""
USER_FIELDS: Mapping[str, str] = {
    "plan": "X-Idv-Plan",
    "card_number": "X-Idv-Card-Number",
    "nickname": "X-Idv-Nickname",
    "profile_url": "X-Idv-Profile-Url",
}
"""The response header field for each member of the user."""
CODE_FIELD = "X-Idv-Code"
"""Response header field with the error code, or ``ok``.

A 404 without this field does not mean that the user is missing. It may come from another server, or
from a service without this route.
"""

_ENCODED = "UTF-8''"
_PLAIN = re.compile(rf"(?!{_ENCODED})[!-~](?:[ -~]*[!-~])?", re.IGNORECASE)


class VerifyHandler(LookupHandler):
    """Looks up the user named in a header field. Its responses have no body.

    The method, ``Accept`` and most other fields are ignored, because proxies pass them on from
    their own clients.
    """

    route = "verify"

    def initialize(self, api: ApiContext) -> None:
        super().initialize(api)
        self.request.method = "GET"  # Tornado would reject methods such as PROPFIND

    async def get(self) -> None:
        found = [
            (operation, text)
            for name, operation in REQUEST_FIELDS.items()
            for text in self.request.headers.get_list(name)
        ]
        operation, text = found[0] if len(found) == 1 else (None, "")
        key = self.accepted_key(operation.scope if operation else None)
        limits = self.limits_within(key)
        if operation is None:
            if limits is not None:
                limits.charge_miss()
            raise InvalidFormat("identifier_header")
        await self.look_up(partial(operation.parse, self.api.identifiers, text), limits)

    def respond(self, result: Result) -> None:
        fields = f"{result.fields}{CODE_FIELD}: {result.code or 'ok'}\r\n"
        if result.code is None:
            user = json.loads(result.body)
            for key, name in USER_FIELDS.items():
                fields += f"{name}: {encode(user[key])}\r\n"
        self.clear_header("Content-Type")
        super().respond(replace(result, body=b"", fields=fields))


def make_routes(settings: Settings, _before: object) -> Iterator[Route]:
    """If ``server.verify`` is on, yield the route.

    The route also matches longer paths, because some proxies append a path.
    """
    if as_type(settings.server, VerifyOptions).verify:
        yield Route(f"{API}/{VerifyHandler.route}", VerifyHandler, is_prefix=True)


def encode(value: str) -> str:
    """Return a text as the value of a header field. Text other than ASCII is encoded (RFC 8187).

    An encoded value begins with ``UTF-8''``. A text with this prefix, or with leading or trailing
    white space, is encoded, too.
    """
    return value if _PLAIN.fullmatch(value) else _ENCODED + quote(value, safe="")
