"""The API of this service itself, as a mapping like any other."""

from __future__ import annotations

from idv_upstream.request.options import CardRequest, NicknameRequest
from idv_upstream.response.options import ResponseOptions
from idv_upstream.response.statuses import Outcome

NATIVE_BY_NICKNAME = NicknameRequest.model_validate(
    {"url": "/api/v1/identify/url", "json": {"input": "@{nickname}"}, "repeatable": True}
)
"""The request to another instance for a nickname."""

NATIVE_BY_CARD = CardRequest.model_validate(
    {
        "url": "/api/v1/identify/card",
        "json": {"card_number": "{card_number}"},
        "repeatable": True,
    }
)
"""The request to another instance for a card number."""

# Where an expression is false it is no text and no record, so the response is rejected.
NATIVE_RESPONSE = ResponseOptions.model_validate(
    {
        "select": "status == 'ok' && @",
        "plan": "plan",
        "card_number": "card_number",
        "nickname": "starts_with(nickname, '@') && nickname",
        "profile_url": "profile_url || `false`",
        "not_known_when": "status == 'error' && code == 'not_found'",
    }
)
"""The mapping of its responses: all five members, or the record for "not found"."""

NATIVE_STATUS = {204: Outcome.BROKEN, 410: Outcome.BROKEN}
"""Statuses that it never sends, so something else must have."""
