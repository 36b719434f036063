"""A reload adds, changes, removes and switches shadows, and loses no answer by that."""

import asyncio
from pathlib import Path

import pytest

from support.http.http_server import until
from support.processes.reloads import GATED, Gated, ReloadHarness, config, reloadable
from tornado_idv.admin.report import FAILED, Report
from tornado_idv.errors import StartError
from tornado_idv.features.shadow import shadow as shadow_module
from tornado_idv.features.shadow import state as shadow_state
from tornado_idv.features.shadow.file import ShadowFile
from tornado_idv.features.shadow.part import ShadowsPart
from tornado_idv.lookup.canary import keep_checking
from tornado_idv.service.part import background

OLD = GATED % ("old", "A")
SHADOW = "{name: new, kind: gated, password: a, plan: %s, shadow: {sample: 100%%, rate: 1000/s%s}}"
RIGHT, WRONG = SHADOW % ("A", ""), SHADOW % ("B", "")


def newest(name: str) -> Gated:
    """Return the backend of this name that was made last."""
    return [each for each in Gated.made if each.name == name][-1]


async def opened(name: str = "new") -> Gated:
    """Wait until there is an open backend of this name."""
    await until(lambda: any(each.name == name and each.is_open for each in Gated.made))
    return newest(name)


def shadows_of(harness: ReloadHarness) -> ShadowsPart:
    (part,) = (each for each in harness.service.directories.parts if isinstance(each, ShadowsPart))
    return part


async def counts(harness: ReloadHarness, total: int, name: str = "new") -> dict[str, int]:
    """Return the results of comparisons, once there are so many and all have ended."""
    counted = harness.service.counters.counts[f"shadow {name}"]
    await until(lambda: sum(counted.values()) >= total)
    for each in shadows_of(harness).shadows:
        await asyncio.gather(*each._tasks)  # noqa: SLF001 - tasks that nothing reports
    return {word: count for word, count in counted.items() if count}


async def reported(harness: ReloadHarness, problem: str) -> Report:
    """Return the report, once the shadow has this problem."""
    async with asyncio.timeout(30):
        while True:
            report = await harness.service.report()
            shadows = report.process.parts["shadows"].sources
            if [each.problem for each in shadows] == [problem]:
                return report
            await asyncio.sleep(0.01)


async def test_shadow_is_added_changed_and_removed_without_a_change_of_the_cache(
    tmp_path: Path,
) -> None:
    async with reloadable(tmp_path, config(OLD)) as harness:
        for text in ("@alice", "@Unknown"):
            await harness.ask(text)
        (old,) = Gated.made
        changed, other = SHADOW % ("B", ", hits: false"), RIGHT.replace("new", "other")
        for text in (config(OLD, RIGHT), config(OLD, changed, other)):
            assert (await harness.reload(text)).code is None
            await opened()
        await opened("other")
        first, second = (each for each in Gated.made if each.name == "new")
        assert (await harness.ask("@bob")).record["plan"] == "A"
        assert await counts(harness, 2) == {"differs": 1, "plan": 1}
        assert await counts(harness, 1, "other") == {"match": 1}
        assert (await harness.reload(config(OLD))).code is None
        assert (await harness.ask("@carol")).status == 200
        for text, status in (("@alice", 200), ("@Unknown", 404), ("@bob", 200)):
            assert (await harness.ask(text)).status == status
        assert harness.cached() == ["miss", "miss", "miss", "miss", "hit", "hit", "hit"]
        assert (first.is_open, second.is_open, old.is_open) == (False, False, True)
        assert (first.asked, second.asked) == (0, 1)
        assert (await counts(harness, 2)) == {"differs": 1, "plan": 1}


@pytest.mark.parametrize(
    ("after", "code", "stays"),
    [
        (config(OLD, GATED % ("other", "C"), RIGHT), None, True),
        (config(OLD, RIGHT, server="request_timeout: 1s"), None, True),
        (config(OLD, "{name: other, kind: gated, opens: false}", WRONG), FAILED, True),
        (config(OLD, RIGHT, site="https://b.example"), None, False),
        (config(OLD, RIGHT.replace("word: a", "word: b")), None, False),
    ],
    ids=["another backend", "another setting", "failed", "other users of responses", "password"],
)
async def test_shadow_that_stays_the_same_stays_open(
    tmp_path: Path, after: str, code: str | None, *, stays: bool
) -> None:
    async with reloadable(tmp_path, config(OLD, RIGHT)) as harness:
        shadow = await opened()
        assert (await harness.reload(after)).code == code
        await until(lambda: newest("new").is_open and shadow.is_open is stays)
        assert (newest("new") is shadow) is stays
        assert (await harness.ask("@alice")).status == 200
        assert await counts(harness, 1) == {"match": 1}
        assert (shadow.asked, newest("new").asked) == (int(stays), 1)


async def test_canary_of_a_shadow_is_looked_up_without_traffic(tmp_path: Path) -> None:
    canary = RIGHT.replace("kind", "canary: {nickname: '@new-bird', card_number: '1'}, kind")
    async with reloadable(tmp_path, config(OLD, canary)) as harness:
        part = shadows_of(harness)
        canaries = part._canaries  # noqa: SLF001 - the check of the canaries alone
        await until(lambda: part.shadows[0].guard is not None)
        async with background(keep_checking(canaries)):
            await until(lambda: all(each.problem for each in canaries()))
        await reported(harness, 'canary @new-bird is not found: its "not found" is not trusted')


@pytest.mark.parametrize("way", ["hangs", "fails", "cannot be made"])
async def test_neither_start_nor_reload_nor_stop_waits_for_a_shadow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    make, open_it = Gated.__init__, Gated.open

    def created(self: Gated, options: object) -> None:
        make(self, options)  # type: ignore[arg-type] - as it was called
        if self.options.shadow and way == "cannot be made":
            raise StartError("no certificate")

    async def open_or_not(self: Gated) -> None:
        if self.options.shadow:
            if way == "hangs":
                await asyncio.Event().wait()
            raise StartError("no route to host")
        await open_it(self)

    monkeypatch.setattr(Gated, "__init__", created)
    monkeypatch.setattr(Gated, "open", open_or_not)
    async with asyncio.timeout(10), reloadable(tmp_path, config(OLD, RIGHT)) as harness:
        assert (await harness.ask("@alice")).status == 200
        assert (await harness.reload(config(OLD, WRONG))).code is None
        assert (await harness.ask("@bob")).status == 200
        assert await counts(harness, 2) == {"skipped": 2}
        expected = {"hangs": "not open yet", "fails": "no route to host"}
        report = await reported(harness, expected.get(way, "no certificate"))
        assert report.degraded() == ["shadow new"]
    assert not any(each.is_open for each in Gated.made)


@pytest.mark.parametrize("closes", [True, False])
async def test_stop_does_not_wait_for_a_comparison_or_a_backend_that_does_not_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closes: bool
) -> None:
    slow = RIGHT.replace("plan: A", "plan: A, timeout: 100s")
    async with asyncio.timeout(10):
        async with reloadable(tmp_path, config(OLD, slow)) as harness:
            shadow = await opened()
            shadow.gate.clear()
            assert (await harness.ask("@alice")).status == 200
            await shadow.begun.wait()
            if not closes:
                monkeypatch.setattr(shadow_module, "_CLOSE_TIMEOUT", 0.01)
                monkeypatch.setattr(shadow, "close", asyncio.Event().wait)
        assert (shadow.is_open, newest("old").is_open) == (not closes, False)


async def test_lookup_that_ends_after_its_source_changed_is_not_compared(tmp_path: Path) -> None:
    async with reloadable(tmp_path, config(OLD, RIGHT)) as harness:
        shadow, old = await opened(), newest("old")
        old.gate.clear()
        asking = asyncio.create_task(harness.ask("@alice"))
        await old.begun.wait()
        assert (await harness.reload(config(GATED % ("old", "C"), RIGHT))).code is None
        old.gate.set()
        assert (await asking).record["plan"] == "A"
        await until(lambda: not old.is_open)
        assert shadow.asked == 0


async def test_comparison_ends_with_its_source(tmp_path: Path) -> None:
    """It would ask a backend that is closed, and count a failure that was none."""
    slow = WRONG.replace("plan: B", "plan: B, timeout: 100s")
    async with reloadable(tmp_path, config(OLD, slow)) as harness:
        shadow = await opened()
        shadow.gate.clear()
        await harness.ask("@alice")
        await shadow.begun.wait()
        old = newest("old")
        assert (await harness.reload(config(GATED % ("old", "C"), slow))).code is None
        await until(lambda: not old.is_open)
        shadow.gate.set()
        await harness.ask("@bob")
        assert await counts(harness, 2) == {"differs": 1, "plan": 1}
        assert newest("new") is shadow


async def test_removed_shadow_or_another_source_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compared before an import that the file cannot know of is no evidence."""
    for name in ("_INTERVAL", "_MIN_INTERVAL"):
        monkeypatch.setattr(shadow_state, name, 0.01)
    kept = SHADOW % ("A", f", state: {tmp_path}/new.db")
    older, other = GATED % ("older", "A"), "https://b.example"
    file = ShadowFile(tmp_path / "new.db", "new")
    async with reloadable(tmp_path, config(OLD, kept)) as harness:

        async def compared(text: str) -> None:
            await until(lambda: file.path.exists() and file.path.stat().st_size > 0)
            await opened()
            assert (await harness.ask(text)).status == 200
            await until(lambda: file.read().matches == 1)

        async def begins_again(text: str) -> None:
            assert (await harness.reload(text)).code is None
            await until(lambda: file.read().matches == 0)

        await compared("@alice")
        assert (await harness.reload(config(OLD, kept.replace("100%", "99.9%")))).code is None
        await until(lambda: len(Gated.made) == 3 and newest("new").is_open)
        await asyncio.gather(*shadows_of(harness)._closing)  # noqa: SLF001 - tasks that nothing reports
        assert file.read().matches == 1
        monkeypatch.setattr("tornado_idv.features.shadow.part.identity_of", lambda _: b"secret")
        assert (await harness.reload(config(OLD, kept.replace("100%", "99.9%")))).code is None
        await until(lambda: len(Gated.made) == 4 and newest("new").is_open)
        await begins_again(config(OLD))
        assert (await harness.reload(config(OLD, kept))).code is None
        await compared("@bob")
        await begins_again(config(older, kept))
        await compared("@carol")
        await begins_again(config(older, kept, site=other))
        await compared("@dora")
        await begins_again(config(older, kept.replace("kind", "match: '@.*', kind"), site=other))
        await compared("@emil")
        await begins_again(config(older, kept.replace("new.db", "moved.db"), site=other))
        file = ShadowFile(tmp_path / "moved.db", "new")
        await compared("@fred")
    assert file.read().matches == 1  # a stop removes none
