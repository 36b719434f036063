"""The OpenAPI 3.1 document of the API, with the patterns and limits of a configuration.

The operation `verify` is omitted, because only proxies use it.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from tornado_idv.cli.common import config_option, examples, exit_on_error
from tornado_idv.config.load import load_without_references
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError
from tornado_idv.interfaces.command_tools import Exit
from tornado_idv.model import User
from tornado_idv.registry import installed_kinds, plugin_manager
from tornado_idv.web.errors import REASONS, ApiError
from tornado_idv.web.json_body import encode_user

Document = dict[str, Any]

_ADVICE: Mapping[ApiError, str] = {
    ApiError.BAD_REQUEST: "The request is not valid HTTP/1.1, or its framing is ambiguous: correct "
    "the client, and do not retry.",
    ApiError.TOKEN: "The key is missing, malformed, unknown, not valid yet, expired, revoked or "
    "disabled: get a valid key from the operator.",
    ApiError.SCOPE: "The key is valid, but lacks the scope in `WWW-Authenticate`.",
    ApiError.NOT_FOUND: "All lookups succeeded, and no backend has this user. Only this code "
    "means that the user does not exist.",
    ApiError.METHOD: "Use a method in `Allow`.",
    ApiError.NOT_ACCEPTABLE: "Send `Accept: application/json`, or no `Accept`.",
    ApiError.REQUEST_TIMEOUT: "The request did not arrive in time: retry.",
    ApiError.BODY_TOO_LARGE: "The body is larger than any valid body: do not retry.",
    ApiError.URI_TOO_LONG: "The target is longer than 2,048 characters: do not retry.",
    ApiError.MEDIA_TYPE: "Send `Content-Type: application/json`, in UTF-8 and not compressed.",
    ApiError.EXPECTATION: "Send no `Expect` other than `100-continue`.",
    ApiError.FORMAT: "The body, or the identifier in it, is not valid: `X-Error-Reason` has the "
    "cause. Do not retry.",
    ApiError.RATE_LIMITED: "Wait for the seconds in `Retry-After`, then retry.",
    ApiError.HEADERS_TOO_LARGE: "Over 100 header fields, or over 16 KiB of them: do not retry.",
    ApiError.INTERNAL: "A defect of the service: report it with the `X-Request-ID`. It does not "
    "mean that the user does not exist.",
    ApiError.OVERLOADED: "Too many connections: retry after the seconds in `Retry-After`.",
    ApiError.UNAVAILABLE: "It could not be determined whether the user exists, or whether the key "
    "is valid: retry after the seconds in `Retry-After`, and treat the user as unchanged.",
}
_STATUSES = frozenset(error.status for error in _ADVICE)
_OF_BATCH = _STATUSES - {403, 404}
_OF_KEY = _OF_BATCH - {415, 422}
_OF_HEALTH = _OF_KEY - {401, 406, 429}
_SUMMARY = ("found", "not_found", "invalid", "undetermined")
_STRING = {"type": "string"}
_FIELDS: Mapping[str, tuple[Collection[int], str, Document]] = {
    "X-Request-ID": (
        _STATUSES,
        "A valid id in the request is kept, otherwise one is generated. The access log has the id.",
        {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
    ),
    "Retry-After": ({429, 503}, "Seconds to wait.", {"type": "integer", "minimum": 1}),
    "RateLimit-Policy": ({429}, "The exceeded limit.", _STRING),
    "RateLimit": ({429}, "No request remains (`r=0`). Wait for `t` seconds.", _STRING),
    "WWW-Authenticate": ({401, 403}, "`Bearer`, and the missing scope (RFC 6750).", _STRING),
    "Allow": ({405}, "The methods of this path.", _STRING),
}
"""Header fields of responses: the statuses of errors with this field, its description and type."""
# Syntax of Rust's patterns without the same meaning in JavaScript.
_NOT_ECMA = re.compile(r"\(\?(?!:)|\\[^dDwWsSb\W_]|\[\[|&&|--|~~")


@click.command(epilog=examples("openapi > openapi.json"))
@config_option
def openapi(config_path: Path) -> None:
    """Print the OpenAPI document of the API with this configuration."""
    with exit_on_error(Exit.NO):
        kinds = installed_kinds(plugin_manager())
        settings, absent = load_without_references(config_path, kinds, os.environ)
        if settings is None:
            raise ConfigError(*absent)
        click.echo(json.dumps(describe_api(settings), indent=2))


def describe_api(settings: Settings) -> Document:
    """Return the OpenAPI document for these settings."""
    server, identifiers = settings.server, settings.make_identifiers()
    sites = [site.prefix for site in identifiers.sites]
    schemas = _user_schemas(settings, sites)
    fewest, most = settings.identifiers.card_length
    user = User("Free", ("4000123412341234" * 4)[: min(max(16, fewest), most)], "alice")
    by_url, by_card, items = dict[str, Document](), dict[str, Document](), dict[str, Document]()
    if identifiers.accepts(user):
        found = json.loads(encode_user(user, identifiers))
        schemas["User"]["examples"] = [found]
        by_nickname = {"input": found["nickname"]}
        by_url = {"nickname": by_nickname, "profile URL": {"input": f"{sites[0]}/m/alice"}}
        by_card = {"card number": {"card_number": found["card_number"]}}
        items = {"users": {"items": [by_nickname, *by_card.values()]}}
    key = {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of the service, in `Authorization: Bearer <key>`.",
    }
    root = f"{server.base_path}/api/v1"
    paths = {
        f"{root}/identify/url": {
            "post": _describe_lookup("Url", "profile URL or nickname", by_url)
        },
        f"{root}/identify/card": {"post": _describe_lookup("Card", "card number", by_card)},
        f"{root}/identify/batch": {"post": _describe_batch(items)},
        f"{root}/key": {"get": _describe_key()},
    }
    if server.health_path is not None:
        paths[server.health_path] = {"get": _describe_health()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tornado-idv",
            "version": version("tornado-idv"),
            "summary": "Does this user exist, and who is it?",
            "description": "Every response with a status of 400 or more is an error record. Only "
            "status 404 **and** `code` `not_found` together mean that a user does not exist. After "
            "any other error, the user may exist.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "tags": [
            {"name": "Lookups", "description": "Find users by their identifiers."},
            {"name": "Service", "description": "Describe the client's key, and check the service."},
        ],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": key},
            "headers": {
                name: {"description": text, "schema": schema}
                for name, (_, text, schema) in _FIELDS.items()
            },
            "schemas": schemas | _fixed_schemas(),
            "responses": {str(status): _describe_errors(status) for status in sorted(_STATUSES)},
        },
    }


def _describe_key() -> Document:
    return {
        "tags": ["Service"],
        "operationId": "describeKey",
        "summary": "Describe the key of this request",
        "description": "The id, scopes, expiry and limits of the key. No backend is queried.",
        "responses": _responses("The key.", _reference("Key"), _OF_KEY),
    }


def _describe_health() -> Document:
    ok = _object(status={"const": "ok"})
    return {
        "tags": ["Service"],
        "operationId": "checkHealth",
        "summary": "Check that the service responds",
        "description": "The response does not depend on backends.",
        "security": [],
        "responses": _responses("The service responds.", ok, _OF_HEALTH),
    }


def _user_schemas(settings: Settings, sites: Sequence[str]) -> Document:
    """Return the schemas of requests for one user, and of a found user."""
    forms = settings.identifiers
    pattern, is_folded = forms.nickname_pattern, forms.nickname_case == "fold"
    text = f"`@` and a nickname. The nickname matches `{pattern}`, and is not only dots."
    if is_folded:
        text += " Upper and lower case are the same."
    nickname: Document = {"type": "string", "description": text}
    urls: Document = {
        "type": "string",
        "description": "A URL of " + " or ".join(f"`{site}/m/`" for site in sites),
    }
    # The pattern applies to the nickname in lower case.
    if not (is_folded or _NOT_ECMA.search(pattern)):
        prefixes = "|".join(re.escape(site) for site in sites)
        nickname["pattern"] = f"^@(?!\\.+$)(?:{pattern})$"
        urls["pattern"] = f"^(?:{prefixes})/m/(?!\\.+/?$)(?:{pattern})/?$"
    fewest, most = forms.card_length
    card = {
        "type": "string",
        "pattern": f"^[0-9]{{{fewest},{most}}}$",
        "description": f"{fewest} to {most} digits; leading zeros count.",
    }
    return {
        "ByUrl": _object(input={"anyOf": [nickname, urls]}),
        "ByCard": _object(card_number=card),
        "User": _object(
            status={"const": "ok"},
            plan={"type": "string", "minLength": 1, "maxLength": 256},
            card_number=card,
            nickname=nickname,
            profile_url={"type": "string", "format": "uri", "maxLength": 2048},
        ),
    }


def _object(**members: Document) -> Document:
    return {"type": "object", "required": list(members), "properties": members}


def _lookup(schema: str, examples: Mapping[str, Document]) -> Document:
    """Return the tags and the request body of a lookup operation."""
    content: Document = {"schema": _reference(schema)}
    if examples:
        content["examples"] = {name: {"value": each} for name, each in examples.items()}
    body = {
        "required": True,
        "description": "At most 16 KiB. Unknown members are ignored.",
        "content": {"application/json": content},
    }
    return {"tags": ["Lookups"], "requestBody": body}


def _describe_lookup(name: str, by: str, examples: Mapping[str, Document]) -> Document:
    return {
        "operationId": f"identifyBy{name}",
        "summary": f"Find a user by {by}",
        "description": f"The key needs the scope `identify:{name.lower()}`.",
        **_lookup(f"By{name}", examples),
        "responses": _responses("The user.", _reference("User"), _STATUSES),
    }


def _describe_batch(examples: Mapping[str, Document]) -> Document:
    return {
        "operationId": "identifyMany",
        "summary": "Find many users",
        "description": "1 to 100 items. For rate limits, each item is one request. Each result is "
        "a user or an error, as in the response to a single lookup. If the key lacks the scope for "
        "an item, the result is `insufficient_scope`. `undetermined` counts all errors except "
        "`not_found` and `invalid_format`.",
        **_lookup("Items", examples),
        "responses": _responses(
            "The results, in the order of the items.", _reference("Results"), _OF_BATCH
        ),
    }


def _fixed_schemas() -> Document:
    """Return the schemas that do not depend on the configuration."""
    item = {
        "type": "object",
        "description": "`input` as in `ByUrl`, or `card_number` as in `ByCard`. For an invalid "
        "value, the result is `invalid_format`.",
        "oneOf": [_object(input={}), _object(card_number={})],
    }
    result = {"anyOf": [_reference("User"), _reference("Error")]}
    is_degraded = "Whether a backend has failed within ten minutes."
    rate = {"type": ["string", "null"], "description": "Like `100/minute`; null for no limit."}
    return {
        "Items": _object(items={"type": "array", "minItems": 1, "maxItems": 100, "items": item}),
        "Results": _object(
            status={"const": "ok"},
            results={"type": "array", "items": result},
            summary=_object(**{name: {"type": "integer"} for name in _SUMMARY}),
            degraded={"type": "boolean", "description": is_degraded},
        ),
        "Key": _object(
            status={"const": "ok"},
            id={"type": "string", "description": "The public name of the key."},
            scopes={"type": "array", "items": _STRING},
            expires={"type": ["string", "null"], "format": "date-time"},
            limits=_object(requests=rate, misses=rate),
        ),
        "Error": _object(
            status={"const": "error"},
            code={"enum": [*dict.fromkeys(error.code for error in ApiError)]},
            message={"type": "string", "description": "For people; may change."},
        ),
    }


def _reference(schema: str) -> Document:
    return {"$ref": f"#/components/schemas/{schema}"}


def _responses(description: str, schema: Document, errors: Iterable[int]) -> Document:
    found = {
        "description": description,
        "headers": _headers(["X-Request-ID"]),
        "content": {"application/json": {"schema": schema}},
    }
    return {"200": found} | {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(errors)
    }


def _headers(names: Iterable[str]) -> Document:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _describe_errors(status: int) -> Document:
    """Return one response that describes all errors with this status."""
    errors = [error for error in _ADVICE if error.status == status]
    headers = _headers(name for name, (statuses, *_) in _FIELDS.items() if status in statuses)
    reasons = {token: text for error in errors for token, text in REASONS.get(error, {}).items()}
    if reasons:
        causes = [{"const": token, "description": text} for token, text in reasons.items()]
        headers["X-Error-Reason"] = {"description": "The cause.", "schema": {"oneOf": causes}}
    codes = {"properties": {"code": {"enum": [error.code for error in errors]}}}
    content = {
        "schema": {"allOf": [_reference("Error"), codes]},
        "examples": {error.code: {"value": json.loads(error.body)} for error in errors},
    }
    return {
        "description": " ".join(f"`{error.code}`: {_ADVICE[error]}" for error in errors),
        "headers": headers,
        "content": {"application/json": content},
    }
