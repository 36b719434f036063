"""The reports of several processes, added up."""

import msgspec

from tornado_idv.admin.report import BackendReport, PartReport, ProcessReport, Report, merge
from tornado_idv.metrics.counters import Counters

SHARED_CACHE = "shared cache"


def counters(seconds: float) -> Counters:
    counted = Counters()
    counted.responses["identify/url", "ok"].add(seconds)
    counted.auth_failures["unknown"] += 1
    counted.rate_limited["misses"] += 2
    counted.cache_lookups["hit"] += 3
    counted.evictions += 4
    counted.log_dropped += 5
    counted.refreshes["ok"] = counted.reloads["ok"] = 6
    counted.counts["shadow new"]["match"] += 7
    for result in ("found", "broken"):
        counted.count_backend_call("crm", result, "", 0.2)
    counted.backends[SHARED_CACHE].results["hit"] += 1
    return counted


def test_merged_counters_are_the_sum() -> None:
    total = Counters()
    for seconds in (0.00005, 0.3):  # the first bound, inclusive
        record = msgspec.json.decode(msgspec.json.encode(counters(seconds).to_record()))
        total.merge(record)
    responses = total.responses["identify/url", "ok"]
    assert (responses.buckets[0], responses.count) == (1, 2)
    assert abs(responses.seconds - 0.30005) < 1e-9
    assert total.auth_failures["unknown"] == 2
    assert total.rate_limited["misses"] == 4
    assert total.cache_lookups["hit"] == 6
    assert (total.evictions, total.log_dropped) == (8, 10)
    assert total.refreshes == total.reloads == {"ok": 12, "failed": 0}
    assert total.counts == {"shadow new": {"match": 14}}
    assert total.backends["crm"].results == {"found": 2, "broken": 2}
    assert total.backends["crm"].durations.count == 4
    assert total.backends[SHARED_CACHE].results == {"hit": 2}


def test_merge_leaves_what_is_merged_as_it_was() -> None:
    """A record of a process that has ended is added to each report."""
    record = counters(0.3).to_record()
    first, second = Counters(), Counters()
    first.merge(record)
    first.merge(counters(0.3).to_record())
    second.merge(record)
    assert second.responses["identify/url", "ok"].count == 1
    assert second.backends["crm"].durations.count == 2


def backend(
    breaker: str,
    since: float | None,
    error: str | None,
    at: float,
    next_probe_s: float | None = None,
) -> BackendReport:
    return BackendReport("crm", "upstream", breaker, 1, 7, since, error, at, None, next_probe_s)


def good() -> BackendReport:
    return backend("closed", None, None, 0.0)


def merged(*backends: BackendReport) -> BackendReport:
    """Return the report of a backend, of those of the workers."""
    (one,) = merge([ProcessReport([each]) for each in backends]).backends
    return one


def degraded(*backends: BackendReport) -> list[str]:
    report = merge([ProcessReport([each]) for each in backends])
    return Report("ready", 1, 0.0, report, Counters()).degraded()


def test_backend_fails_if_it_fails_in_one_worker() -> None:
    refused = backend("open", 10.0, "connection refused", 40.0)
    reports = backend("closed", 20.0, "timeout", 30.0), refused, good()
    assert degraded(*reports) == ["backend crm"]
    expected = BackendReport("crm", "upstream", "open", 3, 7, 10.0, "connection refused", 40.0)
    assert merged(*reports) == expected


def test_a_failure_an_open_circuit_and_a_problem_of_any_worker_are_degraded() -> None:
    """A call that was under way succeeds while the circuit is open."""
    for state, since in (("half_open", None), ("open", None), ("closed", 10.0)):
        assert degraded(good(), backend(state, since, "down", 1.0)) == ["backend crm"]
    assert degraded(backend("closed", None, "timeout", 30.0)) == []
    bad = good()
    bad.problem = "the edit was rejected"
    assert degraded(good(), bad) == ["backend crm"]


def test_servers_of_all_workers_are_shown_once() -> None:
    reports = [good() for _ in range(3)]
    primary, standby = ("db1:5432", "primary"), ("db2:5432", "standby")
    for report, servers in zip(reports, ([standby, primary], [standby], []), strict=True):
        report.servers = servers
    assert merged(*reports).servers == [primary, standby]


def test_open_circuit_of_one_worker_is_shown_though_another_failed_later() -> None:
    half_open = backend("half_open", 20.0, "timeout", 40.0)
    assert merged(backend("open", 10.0, "refused", 30.0), half_open).breaker == "open"
    assert merged(half_open).breaker == "half_open"


def test_next_probe_is_the_first_of_all_workers_whose_circuit_is_open() -> None:
    states = [("open", 9.0), ("open", 4.0), ("half_open", None), ("closed", None)]
    reports = [backend(each, 1.0, "x", 1.0, at) for each, at in states]
    assert merged(*reports).next_probe_s == 4.0
    assert merged(*reports[2:]).next_probe_s is None


def test_gauges_are_added_up_and_the_longest_lag_is_kept() -> None:
    report = merge(
        [
            ProcessReport([], {"found": 1}, {"IDLE": 2}, max_lag=0.25),
            ProcessReport([], {"found": 3}, {"IDLE": 1, "READING": 1}, max_lag=0.75),
        ]
    )
    assert report.cache_entries == {"found": 4}
    assert report.connections == {"IDLE": 3, "READING": 1}
    assert report.max_lag == 0.75


def test_shared_cache_fails_if_it_fails_in_one_worker() -> None:
    good = BackendReport(SHARED_CACHE, "redis", "closed", 0, None, None, None, 0.0)
    bad = BackendReport(SHARED_CACHE, "redis", "closed", 1, None, None, "x", 9.0, "a purge")
    parts = [PartReport(sources=[each], gauges={"pending": 2}) for each in (good, bad, good)]
    report = merge([ProcessReport(parts={SHARED_CACHE: each}) for each in parts])
    assert report.parts == {SHARED_CACHE: PartReport(sources=[bad], gauges={"pending": 6})}
    total = Report("ready", 1, 0.0, report, Counters())
    assert total.parts == total.degraded() == ["shared cache"]


def test_part_fails_if_it_fails_in_one_worker() -> None:
    good, bad = PartReport(None, 1.0), PartReport("no response in time", 2.0)
    process = merge([ProcessReport(parts={"key store": each}) for each in (good, bad, good)])
    assert process.parts == {"key store": bad}
    report = Report("ready", 1, 0.0, process, Counters())
    assert report.parts == report.degraded() == ["key store"]


def test_no_worker_reports_nothing() -> None:
    assert merge([]) == ProcessReport()


def test_canary_is_found_if_every_worker_found_it() -> None:
    """A worker that has no result yet does not count."""
    reports = [good(), good()]
    for report, found in zip(reports, (True, False), strict=True):
        report.canaries = {"nickname": True, "card_number": found}
    assert merged(*reports, good()).canaries == {"nickname": True, "card_number": False}
