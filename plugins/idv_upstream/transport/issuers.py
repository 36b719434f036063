"""Requests for a token, and what their responses mean: OAuth 2.0, and logins."""

from __future__ import annotations

import json
import math
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode

from pydantic import SecretStr

from idv_upstream.request.template import Request
from idv_upstream.response.raw import Response, decode_json, sent_at
from idv_upstream.transport.credentials import (
    TOKEN,
    ClientCredentials,
    Credential,
    Login,
    LoginRequest,
)
from tornado_idv import Broken, Unavailable
from tornado_idv.mapping import Expression, json_type

# Seconds.
_MAX_PAUSE = 3600.0
_DEFAULT_LIFETIME = 300.0
_MAX_LIFETIME = 86400.0
_MAX_LOGIN = 3600.0
"""A token that was revoked may get an empty list in place of a 401, and is used until then."""
_FIRST_TIMESTAMP, _FIRST_IN_MILLISECONDS = 1e9, 1e11
"""Numbers from which on an ``expires`` is a Unix time, in seconds or in milliseconds."""

_REFUSED = (400, 401, 403)
_TEMPORARY = (408, 429, *range(500, 1000))


class Issuer(NamedTuple):
    """The requests of one credential for a token."""

    name: str
    request: Callable[[], Request]
    """The secrets are read for each, since their files may have changed."""
    read: Callable[[Response], tuple[str, float]]
    """Returns the token and its lifetime in seconds; raises `Unavailable` or `Broken`."""
    max_refused_backoff: float = 0.0
    """Seconds up to which the pause grows after each refusal: an account may be locked after some,
    to which each process contributes."""


def issuer_of(auth: Credential) -> Issuer | None:
    """Return the issuer of the token of a credential, if it has one."""
    if isinstance(auth, ClientCredentials):
        return Issuer("token server", partial(_oauth_request, auth), _oauth_token)
    if isinstance(auth, Login):
        request, read = partial(_login_request, auth.login), partial(_login_token, auth.login)
        return Issuer("login", request, read, _MAX_PAUSE)
    return None


def has_token(status: int) -> bool:
    """Return whether a response of this status should have a token."""
    return status in (200, 201)


def _check_status(status: int) -> None:
    if status in _REFUSED:
        raise Broken(f"our credentials are refused (status {status})")
    if status in _TEMPORARY:
        raise Unavailable(f"temporarily unavailable (status {status})")
    if not has_token(status):
        raise Broken(f"unexpected status {status}")


def _oauth_request(options: ClientCredentials) -> Request:
    """Return a request by client credentials (RFC 6749, section 4.4)."""
    secret = options.client_secret.get_secret_value()
    form = {"grant_type": "client_credentials"}
    optional = {"scope": options.scope, "audience": options.audience}
    form |= {name: value for name, value in optional.items() if value is not None}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if options.style == "form":
        form |= {"client_id": options.client_id, "client_secret": secret}
    else:
        # Encoded before they are joined (RFC 6749, section 2.3.1).
        pair = f"{quote_plus(options.client_id)}:{quote_plus(secret)}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    body = urlencode(form).encode()
    return Request("POST", options.token_url, headers, body, repeatable=False)


def _oauth_token(response: Response) -> tuple[str, float]:
    _check_status(response.status)
    record: Any = None
    with suppress(Broken):
        record = decode_json(response.body)
    if isinstance(record, dict):
        token, kind = record.get("access_token"), record.get("token_type", "bearer")
        is_bearer = isinstance(kind, str) and kind.lower() == "bearer"
        if is_bearer and isinstance(token, str) and TOKEN.fullmatch(token):
            seconds = _seconds_until(record.get("expires_in"), 0.0)
            seconds = _DEFAULT_LIFETIME if seconds is None else max(seconds, 0.0)
            return token, min(seconds, _MAX_LIFETIME)
    raise Broken("the response has no bearer token")


def _login_request(login: LoginRequest) -> Request:
    headers = {"Content-Type": "application/json"} | _plain(login.headers)
    body = json.dumps(_plain(login.json_body)).encode()
    return Request("POST", login.url, headers, body, repeatable=False)


def _plain(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def _login_token(login: LoginRequest, response: Response) -> tuple[str, float]:
    _check_status(response.status)
    document = decode_json(response.body)
    token = Expression(login.token).evaluate(document)
    if not (isinstance(token, str) and TOKEN.fullmatch(token)):
        raise Broken(f"token ({login.token}) gives no token, but {json_type(token)}")
    now = sent_at(response.headers).timestamp()
    if login.expires is None:
        seconds = _seconds_until(_expiry_of(token), now)
        seconds = _DEFAULT_LIFETIME if seconds is None else seconds
    else:
        value = Expression(login.expires).evaluate(document)
        seconds = _seconds_until(value, now)
        if seconds is None:
            raise Broken(f"expires ({login.expires}) gives no time, but {json_type(value)}")
    if seconds <= 0:
        raise Broken("the token has expired already; compare the clocks")
    return token, min(seconds, _MAX_LOGIN)


def _seconds_until(expires: Any, now: float) -> float | None:
    """Return seconds from ``now``, a Unix time; ``None`` if ``expires`` is neither number nor time.

    Some servers send a number as a string.
    """
    if isinstance(expires, bool):
        return None
    try:
        number = float(expires)
    except (TypeError, ValueError, OverflowError):
        try:
            time = datetime.fromisoformat(expires)
        except (TypeError, ValueError):
            return None
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() - now
    if not math.isfinite(number):
        return None
    if number >= _FIRST_IN_MILLISECONDS:
        number /= 1000
    return number - now if number >= _FIRST_TIMESTAMP else number


def _expiry_of(token: str) -> Any:
    """Return ``exp`` of a JWT (RFC 7519, section 4.1.4), which need not be verified here."""
    with suppress(Broken, ValueError, LookupError, TypeError):
        return decode_json(urlsafe_b64decode(token.split(".")[1] + "=="))["exp"]
    return None
