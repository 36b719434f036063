"""Exceptions of the service, independent of HTTP.

No message may contain a key, a card number or a nickname: messages are logged, and some of them are
shown to operators.
"""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


class IdvError(Exception):
    """Base class of all errors of this package. It is never raised directly."""


class InvalidFormat(IdvError):
    """The input has an invalid format, so it identifies no user.

    ``reason`` is a token for clients and logs. `REASONS` contains the message for each token.
    """

    REASONS: ClassVar[Mapping[str, str]] = {
        "not_json": "the body must be one JSON document in UTF-8, without duplicate members",
        "byte_order_mark": "the body must be UTF-8 without a byte order mark",
        "not_an_object": "the body must be a JSON object",
        "member_missing": "the body lacks the member that this operation reads",
        "member_not_a_string": "the value must be a JSON string",
        "items_number": "items must be a list of 1 to 100",
        "item_invalid": "each item must be an object with either input or card_number",
        "identifier_header": "exactly one of X-Idv-Input and X-Idv-Card must be sent, once",
        "nickname_without_at": "a nickname must begin with @",
        "nickname_invalid": "the nickname has a length or characters that are not allowed",
        "not_an_identifier": "the value is neither @ and a nickname nor a profile URL",
        "other_site": "the URL is not of a profile site of this service",
        "other_scheme": "the URL has another scheme than the profile site",
        "url_without_m": "the URL must have /m/ between the profile site and the nickname",
        "url_with_query": "the URL must have no query and no fragment",
        "card_not_digits": "a card number must be ASCII digits without spaces or dashes",
        "card_length": "the card number has too few or too many digits",
    }

    def __init__(self, reason: str) -> None:
        super().__init__(self.REASONS[reason])
        self.reason = reason


class LookupFailed(IdvError):
    """Base class of errors for lookups without an answer. It is never raised directly.

    ``reason`` is a short description for the operator. ``backend`` is the name of the configured
    backend, set by its guard. ``continues`` is true if the lookup must continue with the next
    backend (``on_unavailable: continue``). If ``counts_against_breaker`` is false, the circuit
    breaker of the backend ignores the failure, because the backend is not down, or another attempt
    costs nothing. Health checks and metrics count every failure. ``retry_after`` is the value of
    ``Retry-After`` in the response, in seconds. If the failure is ``memoized``, later callers get
    the same failure for the time ``cache.failure_memo``.
    """

    retry_after: float = 1.0

    def __init__(
        self,
        reason: str,
        *,
        backend: str | None = None,
        counts_against_breaker: bool = True,
        retry_after: float | None = None,
        memoized: bool = True,
    ) -> None:
        super().__init__(reason)
        if retry_after is not None:
            self.retry_after = retry_after
        self.reason = reason
        self.backend = backend
        self.counts_against_breaker = counts_against_breaker
        self.memoized = memoized
        self.continues = False

    def copy(self) -> "LookupFailed":
        """Return a copy for another caller, because each ``raise`` changes an error's traceback."""
        same = type(self).__new__(type(self), self.reason)  # a subclass may change __init__
        vars(same).update(vars(self))
        return same

    def __str__(self) -> str:
        return self.reason if self.backend is None else f"{self.backend}: {self.reason}"


class Unavailable(LookupFailed):
    """The backend is temporarily unavailable: a timeout, a lost connection, a lock or a 5xx."""


class Untrusted(Unavailable):
    """The canaries of the backend do not confirm its answer, so the answer is not trusted."""


class Broken(LookupFailed):
    """The backend has a permanent error, such as wrong data, wrong credentials or a defect."""

    retry_after = 60.0  # an operator has to act


class InvalidKey(IdvError):
    """The token belongs to no valid key.

    ``reason`` is only for the log. ``key_id`` is set if the key is known, but expired, not valid
    yet, revoked or disabled.
    """

    def __init__(self, reason: str, key_id: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.key_id = reason, key_id


class UndeterminedKey(InvalidKey):
    """The validity of the token is unknown, because the key store cannot be read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a file of the operator. Lines and columns start at 1."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}"
        return f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"


class KeyStoreError(IdvError):
    """The key store is unusable or refuses a change. The message contains the reason."""


class MissingKeyStoreError(KeyStoreError):
    """The key store does not exist."""


class UncertainChangeError(KeyStoreError):
    """A change of the key store has an unknown result: it may or may not be effective."""


class StartError(IdvError):
    """The service cannot start. The message contains advice for the operator."""


class DegradedStartError(StartError):
    """A backend is open, but cannot look users up until an operator fixes its source.

    After the fix, the backend recovers without a restart. The service starts degraded, to prevent a
    restart loop by a service manager. A reload fails and keeps the old configuration.
    """


class MissingConfigError(StartError):
    """The configuration file does not exist."""


class SettingError(StartError):
    """A setting conflicts with another setting or the system. ``steps`` is the setting's path."""

    def __init__(self, message: str, *steps: int | str) -> None:
        super().__init__(message)
        self.steps = steps


class ConfigError(StartError):
    """A file of the operator has errors. ``problems`` contains all of them.

    The message has a line for each of the first `MAX_LINES` problems.
    """

    MAX_LINES: ClassVar[int] = 100

    def __init__(self, *problems: Problem) -> None:
        lines = [str(problem) for problem in problems[: self.MAX_LINES]]
        if more := problems[self.MAX_LINES :]:
            lines.append(f"and {len(more)} more problems")
        super().__init__("\n".join(lines))
        self.problems = problems


def format_traceback(error: BaseException) -> str:
    """Return the stack trace and the type of an unexpected exception, for the log.

    The message of the exception is omitted, because it may contain the query.
    """
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
