"""The protocol of this service itself, in the words of any other mapping."""

from __future__ import annotations

from idv_upstream.request import CardRequest, NicknameRequest
from idv_upstream.responses import ResponseOptions
from idv_upstream.statuses import Outcome

OWN_BY_NICKNAME = NicknameRequest.model_validate(
    {"url": "/api/v1/identify/url", "json": {"input": "@{nickname}"}, "repeatable": True}
)
"""How another instance is asked for a nickname."""

OWN_BY_CARD = CardRequest.model_validate(
    {
        "url": "/api/v1/identify/card",
        "json": {"card_number": "{card_number}"},
        "repeatable": True,
    }
)
"""How another instance is asked for a card number."""

# Where an expression gives false it is no text and no record, so the answer is refused.
OWN_RESPONSE = ResponseOptions.model_validate(
    {
        "select": "status == 'ok' && @",
        "plan": "plan",
        "card_number": "card_number",
        "nickname": "starts_with(nickname, '@') && nickname",
        "profile_url": "profile_url || `false`",
        "not_known_when": "status == 'error' && code == 'not_found'",
    }
)
"""How its answers are read: all five members, or the record that says there is no such user."""

OWN_STATUS = {204: Outcome.BROKEN, 410: Outcome.BROKEN}
"""What it never answers, so that something else does."""
