"""Lookups for proxies. A proxy reads only the status and the header fields of a response."""

from __future__ import annotations

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

REQUEST_FIELDS: Mapping[str, Operation] = {
    "X-Idv-Input": IDENTIFY_URL,
    "X-Idv-Card": IDENTIFY_CARD,
}
"""Header fields of a request with an identifier, and the operation with this identifier."""
USER_FIELDS: Mapping[str, str] = {
    "plan": "X-Idv-Plan",
    "card_number": "X-Idv-Card-Number",
    "nickname": "X-Idv-Nickname",
    "profile_url": "X-Idv-Profile-Url",
}
"""Header fields of a response with the members of the user."""
CODE_FIELD = "X-Idv-Code"
"""Header field with the code of the error record, or ``ok``.

A 404 without it has no meaning for the user: another server may have sent it, or a service without
this route.
"""

_ENCODED = "UTF-8''"
_PLAIN = re.compile(rf"(?!{_ENCODED})[!-~](?:[ -~]*[!-~])?", re.IGNORECASE)


class VerifyHandler(LookupHandler):
    """Looks up the user in a header field, and responds without a body.

    Method, ``Accept`` and other fields are ignored: proxies pass them on from their own clients.
    """

    route = "verify"

    def initialize(self, api: ApiContext) -> None:
        super().initialize(api)
        self.request.method = "GET"  # Tornado rejects methods such as PROPFIND with 405

    async def get(self) -> None:
        headers = self.request.headers
        found = [
            (operation, text)
            for name, operation in REQUEST_FIELDS.items()
            for text in headers.get_list(name)
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
            lines = (f"{name}: {encode(user[key])}\r\n" for key, name in USER_FIELDS.items())
            fields += "".join(lines)
        self.clear_header("Content-Type")
        super().respond(replace(result, body=b"", fields=fields))


def make_routes(settings: Settings, _before: object) -> Iterator[Route]:
    """Yield the route if enabled. It is a prefix: some proxies append their client's path."""
    if as_type(settings.server, VerifyOptions).verify:
        yield Route(f"{API}/{VerifyHandler.route}", VerifyHandler, is_prefix=True)


def encode(value: str) -> str:
    """Return the value of a header field. Plain ASCII stays, other text is encoded (RFC 8187).

    Encoded text begins with ``UTF-8''``. A value with this beginning, or with white space at an
    end, is encoded as well.
    """
    return value if _PLAIN.fullmatch(value) else _ENCODED + quote(value, safe="")
