"""Comparison of the outcomes of a lookup in two sources."""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from tornado_idv.errors import LookupFailed, Untrusted
from tornado_idv.model import User

ComparisonResult = Literal[
    "match", "missing", "extra", "differs", "unverified", "source_failed", "target_failed"
]
"""``missing``: only the source has the user. ``extra``: only the target has the user."""


class Comparison(Struct, frozen=True):
    """The result of comparing two sources by one query.

    ``fields`` are the names of the differing fields. ``user`` is the user in the source. If only
    the target has a user, it is the user in the target.
    """

    result: ComparisonResult
    fields: tuple[str, ...] = ()
    user: User | None = None


def compare(
    source: User | LookupFailed | None,
    target: User | LookupFailed | None,
    differences: Callable[[User, User], Sequence[str]],
) -> Comparison:
    """Compare the outcomes of two lookups. ``None`` is "not found".

    The first of these cases decides the result: a failed source, a failed target, an `Untrusted`
    outcome, a difference. ``differences`` returns the differing fields of two users.
    """
    user = source if isinstance(source, User) else target if isinstance(target, User) else None
    result: ComparisonResult
    fields: tuple[str, ...] = ()
    if isinstance(source, LookupFailed) and not isinstance(source, Untrusted):
        result = "source_failed"
    elif isinstance(target, LookupFailed) and not isinstance(target, Untrusted):
        result = "target_failed"
    elif isinstance(source, Untrusted) or isinstance(target, Untrusted):
        result = "unverified"
    elif source is not None and target is not None:
        fields = tuple(differences(source, target))
        result = "differs" if fields else "match"
    elif source is not None:
        result = "missing"
    else:
        result = "match" if target is None else "extra"
    return Comparison(result, fields, user)
