"""The soak run serves, reloads and purges, and finds growth where there is some."""

import random
import re

import pytest
from click.testing import CliRunner

from benchmarks.soak import __main__ as soak
from benchmarks.soak.readings import Reading, memory_per_hour


@pytest.mark.slow
def test_soak_run_reports_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_CAPACITY_SECONDS": 0.3, "_SHARE": 0.1, "_RELOAD_INTERVAL": 2}.items():
        monkeypatch.setattr(soak, name, value)
    output = CliRunner().invoke(soak.main, ["--seconds", "3", "--users", "1000"]).stdout
    assert re.search(r"^responses \{'200': \d+.*\}, 1 reloads", output, re.MULTILINE)
    assert re.search(r"^memory [\d.]+ to [\d.]+ MiB", output, re.MULTILINE)
    assert re.search(r"p99\.9 [\d.]+ ms", output)


@pytest.mark.parametrize("growth", [0.0, 0.5, 5.0], ids="{} MiB/h".format)
def test_growth_is_found_among_noise(growth: float) -> None:
    source = random.Random(1)
    readings = [
        Reading(at, 100 + growth * at / 3600 + source.gauss(0, 0.05) - 5 * (at % 70 < 10), 25, 5)
        for at in range(600)
    ]
    assert memory_per_hour(readings) == pytest.approx(growth, abs=0.6)
