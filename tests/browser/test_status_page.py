"""The status page in a browser: what an operator sees and can do."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from support.processes.admin import ADMIN_KEY, OPEN_TO_ALL
from support.processes.browser import CHROMIUM, DRIVER, open_browser, prefer, resize
from support.processes.service import CONFIG, FIXTURE, KEY, Client, make_database, serving
from tornado_idv.service.service import Service

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="chromium and chromium-driver are not installed; `make test-tools` does it",
    ),
]
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
BACKENDS = """\
  - {name: first, kind: sqlite, path: users.db, breaker: {failures: 2, open_for: 100ms}}
admin: {port: 0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("page")
    make_database(folder / "users.db", ("alice", "4000123412341234", "Free", None))
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """A service that is asked for another user about 10 times a second."""
    with serving(CONFIG + BACKENDS, folder) as running:
        stop = threading.Event()

        def ask() -> None:
            client = Client(running.port)
            for i in itertools.count():
                client.by_input(f"@user{i}")
                if stop.wait(0.1):
                    return

        thread = threading.Thread(target=ask)
        thread.start()
        yield running
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def browser(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        resize(driver, 1100, 900)
        open_page(driver, service)
        yield driver


def open_page(browser: Chrome, service: Service) -> None:
    browser.get(f"{service.admin_url}/status")
    wait_for(lambda: shown(browser, "#figures"))


@pytest.fixture
def page(browser: Chrome) -> Iterator[Chrome]:
    """The loaded page; in the end, the console has no error since it was opened."""
    yield browser
    assert errors(browser) == []


def errors(browser: Chrome) -> list[str]:
    """Return the errors in the console since the last call."""
    return [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def text(browser: Chrome, selector: str) -> str:
    """Return the text of an element at once, before the page replaces it."""
    script = "return document.querySelector(arguments[0])?.innerText ?? ''"
    found: str = browser.execute_script(script, selector)
    return found


def shown(browser: Chrome, selector: str) -> bool:
    return browser.find_element(By.CSS_SELECTOR, selector).is_displayed()


def test_figures_move_under_load(page: Chrome) -> None:
    seen: set[str] = set()

    def moves() -> bool:
        seen.add(text(page, "#value-requests"))
        return len({each for each in seen if each.endswith("/s") and each[0] in "123456789"}) > 1

    wait_for(moves)
    assert text(page, "#value-p50").endswith("s")
    assert text(page, "#value-hit_ratio") == "0 %"
    assert len(page.find_elements(By.CSS_SELECTOR, "#charts canvas")) == 5


def test_failing_backend_is_shown_within_5_seconds_and_its_recovery(
    page: Chrome, folder: Path
) -> None:
    """In words, beside the color."""
    database = folder / "users.db"
    wait_for(lambda: text(page, "#backends .pill") == "available")
    content = database.read_bytes()
    database.write_bytes(b"")
    wait_for(lambda: text(page, "#backends .pill.bad") == "failing", 5)
    assert text(page, "#pill") == "Degraded"
    assert text(page, "#problems") == "backend first fails"
    wait_for(lambda: "since" in text(page, "#backends") and "open" in text(page, "#backends"), 5)
    assert page.find_elements(By.CSS_SELECTOR, "#figures.failing")
    database.write_bytes(content)
    wait_for(lambda: text(page, "#backends .pill.good") == "available", 5)
    assert text(page, "#pill") == "Ready"


def test_lost_service_is_shown_with_the_time_of_the_last_update(browser: Chrome) -> None:
    updated = text(browser, "#updated").removeprefix("Updated ")
    assert updated
    go_offline(browser, offline=True)
    wait_for(lambda: shown(browser, "#offline"))
    banner = text(browser, "#offline")
    assert banner.startswith("The service does not respond. The last update was at ")
    assert text(browser, "#updated").removeprefix("Updated ") in banner
    assert text(browser, "#pill") == "No response"
    go_offline(browser, offline=False)
    wait_for(lambda: not shown(browser, "#offline"))
    assert text(browser, "#pill") == "Ready"
    assert errors(browser)  # the requests that failed


def go_offline(browser: Chrome, *, offline: bool) -> None:
    rates = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": offline, **rates})


def test_lookup_is_explained_by_keyboard_alone(page: Chrome) -> None:
    prefer(page, "light")
    page.execute_script("document.activeElement.blur()")
    focused = []
    outline = "return getComputedStyle(document.activeElement).outline"
    for _ in range(3):
        page.switch_to.active_element.send_keys(Keys.TAB)
        element = page.switch_to.active_element
        focused.append(element.get_attribute("id") or element.text)
        assert page.execute_script(outline) == "rgb(37, 99, 235) solid 3px"
    assert focused == ["Skip to the figures", "input", "Explain"]
    page.find_element(By.ID, "input").send_keys("@alice", Keys.ENTER)
    wait_for(lambda: text(page, "#explanation").startswith("The user was found."))
    assert text(page, "#explanation li").split()[:2] == ["first", "found"]
    assert "alice" not in page.current_url
    field = page.find_element(By.ID, "input")
    field.clear()
    field.send_keys("4000999999999999", Keys.ENTER)
    wait_for(lambda: text(page, "#explanation").startswith("There is no such user."))


@pytest.mark.parametrize(
    ("scheme", "width", "rules"),
    [("light", 1100, None), ("dark", 360, ["color-contrast", "target-size"])],
    ids=["light", "dark phone"],
)
def test_page_is_accessible(page: Chrome, scheme: str, width: int, rules: list[str] | None) -> None:
    """Also readable on a phone without scrolling to the side; ``rules`` are all by default."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; `make test-tools` does it")
    prefer(page, scheme)
    resize(page, width, 900)
    background = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (int(background.removeprefix("rgb(").split(",")[0]) < 100) == (scheme == "dark")
    # The page lays itself out again a moment after it was resized.
    wait_for(lambda: page.execute_script("return document.documentElement.scrollWidth") <= width)
    if not page.execute_script("return 'axe' in window"):
        page.execute_script(AXE.read_text(encoding="utf-8"))
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    run = "axe.run(arguments[0]).then(arguments[1])"
    result: dict[str, Any] = page.execute_async_script(run, options)
    serious = [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_page_asks_for_a_key_where_one_is_needed(
    browser: Chrome, service: Service, tmp_path: Path
) -> None:
    """And does not store it."""
    (tmp_path / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    with serving(OPEN_TO_ALL, tmp_path) as other:
        browser.get(f"{other.admin_url}/status")
        wait_for(lambda: shown(browser, "#access"))
        for key, problem in [
            ("wrong-wrong", "This key is not valid."),
            ("käy", "This key is not valid."),
            (KEY, "This key does not have the scope admin."),
        ]:
            assert not shown(browser, "#figures")
            browser.switch_to.active_element.send_keys(key, Keys.ENTER)
            wait_for(lambda: text(browser, "#access-problem") == problem)  # noqa: B023
        browser.switch_to.active_element.send_keys(ADMIN_KEY, Keys.ENTER)
        wait_for(lambda: shown(browser, "#figures"))
        wait_for(lambda: text(browser, "#pill") == "Ready")
        stored = "return localStorage.length + sessionStorage.length + document.cookie.length"
        assert browser.execute_script(stored) == 0
        assert ADMIN_KEY not in browser.page_source
        browser.refresh()
        wait_for(lambda: shown(browser, "#access"))
    open_page(browser, service)
    assert errors(browser)  # the requests without a valid key


def test_error_rates_have_a_chart_of_their_own(page: Chrome) -> None:
    """The service is asked for users that do not exist."""
    wait_for(lambda: text(page, "#value-status_404")[:1] in "123456789")
    assert text(page, "#value-status_401") == "0 /s"


def test_charts_begin_at_the_start_of_the_service(page: Chrome) -> None:
    assert text(page, "#shown").startswith("since ")


def test_missing_at_sign_is_suggested(page: Chrome) -> None:
    field = page.find_element(By.ID, "input")
    assert field.get_attribute("placeholder") == "@alice"
    field.clear()
    field.send_keys("alice", Keys.ENTER)
    wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "#explanation button"))
    assert "a nickname must begin with @" in text(page, "#explanation")
    suggestion = page.find_element(By.CSS_SELECTOR, "#explanation button")
    assert suggestion.text == "Explain @alice"
    suggestion.click()
    wait_for(lambda: text(page, "#explanation").startswith("The user was found."))
    assert all("422" in each for each in errors(page))  # of the first attempt


def test_on_a_phone_a_failing_backend_is_above_the_charts(page: Chrome) -> None:
    def is_above() -> bool:
        script = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
        top = [page.execute_script(script, each) for each in ("#sources", "#charts")]
        return bool(top[0] < top[1])

    resize(page, 390, 844)
    assert not is_above()
    page.execute_script("document.getElementById('figures').classList.add('failing')")
    assert is_above()
    resize(page, 1100, 900)


def test_open_circuit_breaker_says_when_it_tries_again(browser: Chrome, tmp_path: Path) -> None:
    breaker = "breaker: {failures: 1, open_for: 50s}"
    backend = f"  - {{name: crm, kind: upstream, base_url: 'http://127.0.0.1:9', {breaker},"
    mapping = "by_nickname: {url: '/{nickname}'}, response: {nickname: a, card_number: b, plan: c}}"
    with serving(f"{CONFIG}{backend} {mapping}\nadmin: {{port: 0}}\n", tmp_path) as service:
        assert Client(service.port).by_input("@alice").status == 503
        open_page(browser, service)
        wait_for(lambda: "next probe in" in text(browser, "#backends"))
        shown: set[str] = set()

        def counts_down() -> bool:
            shown.add(text(browser, "#backends").partition("next probe in ")[2].split("\n")[0])
            return len(shown) > 1

        wait_for(counts_down)
