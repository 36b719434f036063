"""The comparison of the times of rejections runs, and finds a difference where there is one."""

from __future__ import annotations

import random

import pytest

from benchmarks.key_timing import LIMIT, compare, measure

KINDS = {
    *("expired", "configured", "not valid yet", "revoked", "disabled"),
    *("unknown", "wrong CRC", "absent", "malformed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["unknown heads", "known heads"])
async def test_every_kind_of_rejection_is_timed(*, known: bool) -> None:
    times = await measure(200, known=known)
    kinds = KINDS - {"absent", "malformed"} if known else KINDS
    assert set(compare(times)) == set(times) == kinds
    assert min(len(samples) for samples in times.values()) == 200


@pytest.mark.slow
def test_difference_is_found_among_interruptions() -> None:
    """Of 1 % in the mean, where 3 % of the samples took ten times as long."""
    source = random.Random(1)

    def samples(mean: float) -> list[int]:
        times = [source.gauss(mean, mean / 10) for _ in range(20_000)]
        return [int(each * (10 if source.random() < 0.03 else 1)) for each in times]

    statistic = compare({"expired": samples(1e6), "same": samples(1e6), "slow": samples(1.01e6)})
    assert abs(statistic["same"]) < LIMIT < statistic["slow"]
