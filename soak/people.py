"""Users, as a source stores them and as a service returns them."""

import json
from dataclasses import dataclass

from support.processes.service import KEY

SITE = "https://profiles.example"
FORGETFUL = f"""\
profile_sites: [{SITE}]
server: {{port: 0, request_timeout: 1s}}
auth: {{keys: [{{id: caller, token: {KEY}}}]}}
cache: {{ttl: 0s, negative_ttl: 0s, failure_memo: 0s, stale_if_error: 0s}}
logging: {{level: warning}}
backends:
"""
"""The configuration of a service that caches nothing."""


@dataclass
class Person:
    """A user. The nickname is without ``@``."""

    nickname: str
    card: str
    plan: str = "Free"

    @property
    def row(self) -> tuple[str, str, str, None]:
        """The row of a database."""
        return self.nickname, self.card, self.plan, None

    @property
    def item(self) -> str:
        """The line of a fixture, with required fields last."""
        return f'  - {{nickname: {self.nickname}, card_number: "{self.card}", plan: {self.plan}}}\n'

    @property
    def body(self) -> bytes:
        """The body of a response."""
        return json.dumps(
            {
                "status": "ok",
                "plan": self.plan,
                "card_number": self.card,
                "nickname": f"@{self.nickname}",
                "profile_url": f"{SITE}/m/{self.nickname}",
            },
            separators=(",", ":"),
        ).encode()

    @property
    def spellings(self) -> tuple[str, str, str]:
        """The inputs that identify the user."""
        return f"@{self.nickname}", f"{SITE}/m/{self.nickname}", self.card


def fixture(*people: Person) -> str:
    """Return a fixture file with these users."""
    return f"count: {len(people)}\nusers:\n" + "".join(each.item for each in people)
