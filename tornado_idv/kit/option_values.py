"""Values of the options of commands."""

from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple, TypeVar

import click

from tornado_idv.units import parse_percentage

T = TypeVar("T")


class Share(NamedTuple):
    """A maximum share of some items: a percentage of all items, or a number of items."""

    text: str
    number: Decimal

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Parse ``5%`` or ``100``. Raises `ValueError`."""
        try:
            is_number = text.isascii() and text.isdigit()
            return cls(text, Decimal(text) if is_number else parse_percentage(text))
        except ValueError:
            raise ValueError("neither a number nor a percentage such as 5%") from None

    def is_exceeded(self, count: int, total: int) -> bool:
        """Return whether ``count`` of ``total`` items exceed this share."""
        return count * 100 > self.number * (total if self.text.endswith("%") else 100)


def parsed_by(parse: Callable[[str], T]) -> Callable[..., T | None]:
    """Return an option callback that calls ``parse`` and reports `ValueError` as wrong use."""

    def callback(_context: object, _parameter: object, text: str | None) -> T | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback
