"""The interpretation of a response as a user, "not found", or an error."""

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import unquote

from multidict import MultiMapping

from idv_upstream.options import UpstreamOptions
from idv_upstream.response.mapping import ResponseMapper
from idv_upstream.response.options import Outcome, outcome
from idv_upstream.response.raw import MAX_RETRY_AFTER, Response, decode_json, retry_after
from tornado_idv import (
    BackendResult,
    Broken,
    LookupFailed,
    Masker,
    Query,
    Unavailable,
    User,
    printable,
)
from tornado_idv.kit.mapping import Expression

_Result = TypeVar("_Result")

_DIRECTIVE = re.compile(r'([!#$%&\'*+.^_`|~0-9A-Za-z-]+)(?:=(?:"([^"]*)"|([^\s",;]*)))?', re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,10}", re.ASCII)


def freshness(headers: MultiMapping[str]) -> tuple[float | None, bool]:
    """Return the maximum cache time of a response in seconds, and whether it may be cached at all.

    The time is ``s-maxage``, or ``max-age`` if ``s-maxage`` is missing or invalid, minus the
    ``Age`` of the response. If both are missing or invalid, the time is ``None``.
    """
    text = ",".join(headers.getall("Cache-Control", ()))
    directives = {name.lower(): quoted or plain for name, quoted, plain in _DIRECTIVE.findall(text)}
    storable = "no-store" not in directives
    for name in ("s-maxage", "max-age"):
        if _SECONDS.fullmatch(directives.get(name, "")):
            age = headers.get("Age", "")
            seconds = float(directives[name]) - (float(age) if _SECONDS.fullmatch(age) else 0.0)
            return max(0.0, seconds), storable
    return None, storable


_REFUSED = (401, 403, 407)
_REDIRECTS = (301, 302, 303, 307, 308)
_PRIVATE = re.compile(r"\S+@\S+\.\w+|(?=[\w+=~-]*[0-9])[\w+=~-]{20,}|[0-9](?:[ .-]?[0-9]){3,}")
"""Pattern of texts to mask in an error message: mail addresses, tokens and card numbers."""
_GAP = re.compile(r"(?<=\w)(?=\w)")
_MAX_MESSAGE = 100


class ResponseReader:
    """Interprets the responses of one upstream.

    The function ``secrets`` returns the texts to mask in error messages.
    """

    def __init__(self, options: UpstreamOptions, secrets: Callable[[], Collection[str]]) -> None:
        self._options = options
        self._mapping = options.mapping
        self._secrets = secrets
        self.mapper = ResponseMapper(self._mapping, folds_nicknames=options.folds_nicknames)
        self._error = None if self._mapping.error is None else Expression(self._mapping.error)

    def read(self, query: Query, response: Response) -> User | None:
        """Return the user, or ``None`` for "not found". Raises `LookupFailed`."""
        return self._mapped(self.mapper.user, query, response)

    def read_id(self, query: Query, response: Response) -> str | None:
        """Return the id for a second request, ``None`` for "not found". Raises `LookupFailed`."""
        return self._mapped(self.mapper.id, query, response)

    def limited(self, user: User | None, *responses: Response) -> User | BackendResult | None:
        """Return ``user`` as a result, with the shortest cache time of all ``responses``."""
        limits = [freshness(each.headers) for each in responses if "Cache-Control" in each.headers]
        if not limits or self._options.cache_control == "ignore":
            return user
        seconds = min((each for each, _ in limits if each is not None), default=None)
        return BackendResult(user, ttl=seconds, storable=all(storable for _, storable in limits))

    def document(self, response: Response) -> Any:
        """Return the JSON document in a response. Raises `Broken` for any other body.

        If ``found_when`` is configured, an empty body counts as null.
        """
        if not response.body and self._mapping.found_when is not None:
            return None
        content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        is_json = content_type == "application/json" or content_type.endswith("+json")
        if self._mapping.media_type == "json" and not is_json:
            raise Broken(f"a response of status {response.status} that is not application/json")
        return decode_json(response.body)

    def wants_body(self, status: int) -> bool | None:
        """Return whether to read the response body. ``None`` means that the body is optional."""
        meaning = outcome(status, self._options.status)
        if meaning in (Outcome.READ, Outcome.NOT_KNOWN):
            return meaning is Outcome.READ or self._mapping.not_known_when is not None
        return False if self._error is None else None

    def _mapped(
        self, read: Callable[[Query, Any], _Result | None], query: Query, response: Response
    ) -> _Result | None:
        """Map the body of a response by ``read``. Add the upstream's message to a failure."""
        try:
            return read(query, self.document(response)) if self._is_read(response) else None
        except LookupFailed as failure:
            with suppress(LookupFailed):
                if self._error is not None and response.body:
                    message = self._error.evaluate(self.document(response))
                    failure.reason += self._masked(message, query) if type(message) is str else ""
            raise

    def _masked(self, message: str, query: Query) -> str:
        """Mask the requested value and secrets in the message, and truncate it."""
        value = query.text.removeprefix("@")
        message = Masker([value])(Masker(self._secrets())(message)).replace(Masker.MASK, "…")
        # The value may be in groups, such as "400 012 - 341", or in a URL. A gap beside a character
        # that is no letter or digit, such as a dot, would make the search take exponential time.
        requested = r"\W{0,3}".join(map(re.escape, _GAP.split(value)))
        masked = re.sub(requested, "…", unquote(message), flags=re.IGNORECASE)[: 10 * _MAX_MESSAGE]
        return f": {printable(_PRIVATE.sub('…', masked)[:_MAX_MESSAGE])}"

    def _is_read(self, response: Response) -> bool:
        """Return true if the body must be mapped, false for "not found". Raises `LookupFailed`."""
        status = response.status
        meaning = outcome(status, self._options.status)
        if meaning is Outcome.READ:
            return True
        if meaning is Outcome.NOT_KNOWN:
            if self.wants_body(status):
                document = self.document(response)
                if self.mapper.is_false("not_known_when", document):
                    raise Broken(f"not_known_when is false for a response of status {status}")
            return False
        if meaning is Outcome.UNAVAILABLE:
            wait = min(max(retry_after(response.headers), 1.0), MAX_RETRY_AFTER)
            raise Unavailable(f"temporarily unavailable (status {status})", retry_after=wait)
        if status in _REFUSED and self._options.has_credential:
            raise Broken(f"the credentials are refused (status {status})")
        if status in _REFUSED:
            raise Broken(f"refused (status {status}), and auth sets no credential")
        if status in _REDIRECTS:
            raise Broken(f"a redirect (status {status}); redirects are not followed")
        raise Broken(f"unexpected status {status}")
