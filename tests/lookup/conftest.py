"""A cache whose time a test moves."""

import pytest

from support.fakes.caches import LIMITS
from support.fakes.clock_and_backends import Ticker, steady_cache
from tornado_idv.lookup.cache import AnswerCache


@pytest.fixture
def ticker() -> Ticker:
    return Ticker()


@pytest.fixture
def cache(ticker: Ticker) -> AnswerCache:
    return steady_cache(LIMITS, ticker)
