"""The faults of the test double. A fault is a simulated failure of lookups."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tornado_idv.options import Duration, Options, WholeNumber
from tornado_idv.units import parse_size


def _drip_rate(value: object) -> object:
    if not isinstance(value, str):
        return value
    size, _, unit = value.partition("/")
    if unit != "s":
        raise ValueError("not a byte rate; write it like 1KiB/s")
    return parse_size(size)


def _status(value: object) -> object:
    if str(value) == "404":
        raise ValueError("must be 429, 500 or 503; for a 404 of a proxy write proxy_status: 404")
    return int(value) if value in ("429", "500", "503") else value


class Fault(Options):
    """A simulated failure of lookups. Two faults are never equal, because each has its own count.

    A fault applies to lookups with a valid key and a valid format. After the ``delay``, it applies
    one of ``status``, ``proxy_status``, ``reset``, ``cut`` and ``drip``. Without any of these, the
    usual response follows.
    """

    status: Annotated[Literal[429, 500, 503] | None, BeforeValidator(_status)] = None
    """The status code of an error response of this service: 429, 500 or 503."""
    proxy_status: Annotated[WholeNumber, Field(ge=400, le=599)] | None = None
    """The status code of an HTML error page, such as from a proxy in front of the service."""
    delay: Duration = 0.0
    """The delay of the response, such as ``100ms``, or in seconds."""
    reset: bool = False
    """Whether the connection is reset without a response."""
    cut: bool = False
    """Whether the connection is closed in the middle of the body."""
    drip: Annotated[
        int | None,
        BeforeValidator(_drip_rate),
        Field(ge=1),
        WithJsonSchema({"type": "string", "examples": ["1KiB/s"]}),
    ] = None
    """The transfer rate of the body, such as ``1KiB/s``."""
    times: Annotated[WholeNumber, Field(ge=1)] | None = None
    """The number of lookups that the fault applies to. Later lookups get the usual response."""
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The probability that the fault applies to a lookup, up to 1."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        kinds = [self.status, self.proxy_status, self.reset, self.cut, self.drip]
        if sum(map(bool, kinds)) > 1:
            raise ValueError("choose one of status, proxy_status, reset, cut and drip")
        if not any(kinds) and not self.delay:
            raise ValueError("choose a status, proxy_status, delay, reset, cut or drip")
        return self
