"""The status page in a browser: what an operator sees and can do."""

import itertools
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from support.databases.key_stores import make_store
from support.processes.admin import ADMIN_KEY, OPEN_TO_ALL, WITH_ADMIN, ask_admin
from support.processes.browser import NEEDS_BROWSER, looks, prefer, resize, violations
from support.processes.process import eventually
from support.processes.service import (
    CARDS_ONLY_KEY,
    CONFIG,
    FIXTURE,
    KEY,
    Client,
    make_database,
    serving,
)
from tornado_idv.keys.token import issue
from tornado_idv.log_format import format_time
from tornado_idv.service.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.ci, NEEDS_BROWSER]
BACKENDS = """\
  - {name: first, kind: sqlite, path: users.db, breaker: {failures: 2, open_for: 100ms}}
admin: {port: 0}
"""


RECORD_LABELS = """
const drawn = [], fetched = fetch, write = CanvasRenderingContext2D.prototype.fillText;
window.drawn = drawn;
CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
  const width = this.measureText(text).width;
  const start = x - {right: width, end: width, center: width / 2}[this.textAlign] ?? 0;
  drawn.push([text, start, start + width, this.canvas.width]);
  return write.call(this, text, x, ...rest);
};
window.fetch = async (path, ...rest) => {
  const response = await fetched(path, ...rest);
  if (!path.includes("history")) return response;
  const record = await response.json();
  record.samples.requests = record.samples.requests.map(() => 80000);
  return new Response(JSON.stringify(record), {status: 200});
};
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
def browser(browser: Chrome, service: Service) -> Chrome:
    resize(browser, 1100, 900)
    open_page(browser, service)
    return browser


def open_page(browser: Chrome, service: Service) -> None:
    browser.get(f"{service.admin_url}/status")
    eventually(lambda: shown(browser, "#figures"))


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose backend fails, and of whose keys one expires soon."""
    folder: Path = tmp_path_factory.mktemp("failing")
    database = folder / "users.db"
    make_database(database, ("alice", "4000123412341234", "Free", None))
    expires = format_time(time.time() + 2.5 * 86400)
    key = f"    - {{id: shop, token: {issue('shop')}, expires: {expires}}}\nbackends:\n"
    config = CONFIG.replace("backends:\n", key) + BACKENDS
    config = config.replace("open_for: 100ms", "open_for: 10m, open_max: 10m")
    with serving(config, folder) as running:
        database.write_bytes(b"")
        for nickname in ("@alice", "@bob"):
            assert Client(running.port).by_input(nickname).status == 503
        yield running


@pytest.fixture
def failing_page(browser: Chrome, service: Service, failing: Service) -> Iterator[Chrome]:
    """The loaded page of the service that fails; in the end, the console has no error."""
    open_page(browser, failing)
    eventually(lambda: shown(browser, "#problem-panel"))
    yield browser
    assert errors(browser) == []
    prefer(browser, "light")
    resize(browser, 1100, 900)
    open_page(browser, service)


@pytest.fixture
def page(browser: Chrome) -> Iterator[Chrome]:
    """The loaded page; in the end, the console has no error since it was opened."""
    yield browser
    assert errors(browser) == []


def errors(browser: Chrome) -> list[str]:
    """Return the errors in the console since the last call."""
    return [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]


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

    eventually(moves)
    assert text(page, "#value-p50").endswith("s")
    assert text(page, "#value-hit_ratio") == "0 %"
    assert len(page.find_elements(By.CSS_SELECTOR, "#charts canvas")) == 5


def test_errors_have_a_chart_with_a_rate_of_each_kind(page: Chrome, service: Service) -> None:
    client = Client(service.port)

    def rates() -> dict[str, float]:
        """Return the rates of the chart, by the status in the label."""
        for key in ("unknown-unknown", CARDS_ONLY_KEY):
            fields = {"Authorization": f"Bearer {key}"}
            assert client.post("/api/v1/identify/url", b"{}", fields).status in (401, 403)
        shown = text(page, ".chart:has(#value-errors) dl")
        return {
            status: float(rate) for status, rate in re.findall(r"(\w+) [a-z ]+\n([\d.]+) /s", shown)
        }

    eventually(lambda: all(rates()[status] > 0 for status in ("401", "403", "404")))
    assert list(rates()) == ["5xx", "429", "401", "403", "404"]
    assert text(page, ".chart:has(#value-requests) dl").count("/s") == 1


def test_labels_of_axes_are_whole(browser: Chrome, service: Service) -> None:
    """Also those of large values, and the last one of the time; all are drawn."""
    script = browser.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument", {"source": RECORD_LABELS}
    )
    try:
        open_page(browser, service)
        eventually(
            lambda: browser.execute_script("return drawn.some(([text]) => text == '75,000 /s')")
        )
        drawn = browser.execute_script("return drawn")
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        open_page(browser, service)
    assert [each for each in drawn if each[1] < 0 or each[2] > each[3]] == []


def test_charts_begin_at_the_start_of_the_service(page: Chrome) -> None:
    """The line of the first chart has nearly the width of the chart."""
    prefer(page, "light")
    assert re.fullmatch(r"since \d\d:\d\d:\d\d", text(page, "#period"))
    script = """
        const canvas = document.querySelector("#charts canvas");
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const found = [];
        for (let i = 0; i < data.length; i += 4) {
          const isBlue = data[i] < 60 && data[i + 2] > 200 && data[i + 3] > 200;
          if (isBlue) found.push(((i / 4) % canvas.width) / canvas.width);
        }
        return [Math.min(...found), Math.max(...found)];
        """

    def has_full_width() -> bool:
        first, last = page.execute_script(script)
        return first is not None and first < 0.25 and last > 0.9

    eventually(has_full_width)


def test_failing_backend_is_shown_within_5_seconds_and_its_recovery(
    page: Chrome, folder: Path
) -> None:
    database = folder / "users.db"
    eventually(lambda: text(page, "#backends .pill") == "available")
    content = database.read_bytes()
    database.write_bytes(b"")
    eventually(lambda: text(page, "#backends .pill.bad") == "failing", 5)
    assert text(page, "#pill") == "Degraded"
    assert text(page, "#problems") == "backend first fails"
    eventually(lambda: "since" in text(page, "#backends") and "open" in text(page, "#backends"), 5)
    database.write_bytes(content)
    eventually(lambda: text(page, "#backends .pill.good") == "available", 5)
    assert text(page, "#pill") == "Ready"
    assert not shown(page, "#problem-panel")


def test_problems_are_first_on_a_phone(failing_page: Chrome) -> None:
    resize(failing_page, 390, 844)
    problems = text(failing_page, "#problem-panel")
    assert "Backend first failing" in " ".join(problems.split())
    assert re.search(r"circuit breaker open, next probe in \d+ min", problems)
    assert "Key shop expires soon in 2 d " in " ".join(problems.split())
    end, start = failing_page.execute_script(
        "return ['#problem-panel', '#charts'].map((each) => document.querySelector(each)"
        ".getBoundingClientRect()).map((box, i) => i ? box.top : box.bottom)"
    )
    assert end < start
    assert end < 844


def test_failed_reload_and_key_store_are_problems(
    browser: Chrome, service: Service, tmp_path: Path
) -> None:
    make_database(tmp_path / "users.db", ("alice", "4000123412341234", "Free", None))
    make_store(tmp_path / "keys.db", "shop")
    config = CONFIG.replace("auth:\n", "auth:\n  store: keys.db\n") + BACKENDS
    with serving(config, tmp_path) as other:
        open_page(browser, other)
        assert not shown(browser, "#problem-panel")
        (tmp_path / "config.yaml").write_text("bogus: 1\n", encoding="utf-8")
        assert ask_admin(other, "/reload", {}).status == 422
        (tmp_path / "keys.db").write_bytes(b"no database" * 1000)
        eventually(lambda: "Key store" in text(browser, "#problem-list"))
        assert re.search(r"Key store\s+failing\n", text(browser, "#problem-list"))
        assert re.search(r"Reload\s+failed\n.*config.yaml:1:1: ", text(browser, "#problem-list"))
        assert text(browser, "#problems") == "key store fails"
    open_page(browser, service)


def test_next_probe_of_an_open_circuit_breaker_is_counted_down(failing_page: Chrome) -> None:
    def seconds(selector: str) -> int:
        match = re.search(r"next probe in (\d+) min (\d+) s", text(failing_page, selector))
        assert match is not None
        return 60 * int(match[1]) + int(match[2])

    for selector in ("#backends", "#problem-list"):
        before = seconds(selector)
        assert before <= 600 * 1.2
        eventually(lambda: seconds(selector) < before)  # noqa: B023


def test_lost_service_is_shown_with_the_time_of_the_last_update(browser: Chrome) -> None:
    updated = text(browser, "#updated").removeprefix("Updated ")
    assert updated
    go_offline(browser, offline=True)
    eventually(lambda: shown(browser, "#offline"))
    banner = text(browser, "#offline")
    assert banner.startswith("The service does not respond. The last update was at ")
    assert text(browser, "#updated").removeprefix("Updated ") in banner
    assert text(browser, "#pill") == "No response"
    go_offline(browser, offline=False)
    eventually(lambda: not shown(browser, "#offline"))
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
    eventually(lambda: text(page, "#explanation").startswith("The user was found."))
    assert text(page, "#explanation li").split()[:2] == ["first", "found"]
    assert "alice" not in page.current_url
    field = page.find_element(By.ID, "input")
    field.clear()
    field.send_keys("4000999999999999", Keys.ENTER)
    eventually(lambda: text(page, "#explanation").startswith("There is no such user."))


def test_explain_form_suggests_the_at_sign(page: Chrome) -> None:
    field, hint = page.find_element(By.ID, "input"), page.find_element(By.ID, "hint")
    field.clear()
    assert field.get_attribute("placeholder") == "@alice"
    assert not hint.is_displayed()
    for typed in ("4000123412341234", "https://profiles.example/m/alice", "@alice"):
        field.send_keys(typed)
        assert not hint.is_displayed()
        field.clear()
    field.send_keys("alice")
    assert hint.text.split("\n") == ["Nicknames begin with @.", "Explain @alice"]
    hint.find_element(By.TAG_NAME, "button").click()
    eventually(lambda: text(page, "#explanation").startswith("The user was found."))
    assert field.get_attribute("value") == "@alice"
    assert not hint.is_displayed()
    assert "alice" not in page.current_url


def test_page_is_accessible(failing_page: Chrome) -> None:
    """With problems and a hint; also readable on a phone without scrolling to the side."""
    page = failing_page
    page.find_element(By.ID, "input").send_keys("alice")
    assert shown(page, "#hint")
    for scheme in looks(page, 1100, 360):
        color = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (int(color.removeprefix("rgb(").split(",")[0]) < 100) == (scheme == "dark")
        assert violations(page, "serious", "critical") == []


def test_shadows_have_a_card_where_there_are_any(
    page: Chrome, service: Service, tmp_path: Path
) -> None:
    """Accessible, and readable on a phone."""
    assert not shown(page, "#shadows-panel")
    (tmp_path / "new.yaml").write_text(FIXTURE.replace("Free", "Pro"), encoding="utf-8")
    shadow = "  - {name: new, kind: yaml, path: new.yaml, shadow: {sample: 100%}}\n"
    with serving(WITH_ADMIN.replace("admin:", f"{shadow}admin:"), tmp_path) as other:
        open_page(page, other)
        status = partial(ask_admin, other, "/status.json")
        eventually(lambda: status().json["shadows"][0]["problem"] is None)
        Client(other.port).by_input("@alice")
        Client(other.port).by_card("4000123412341234")
        Client(other.port).by_input("@bob")
        eventually(lambda: text(page, "#shadows [data-column=Match]").split()[-1:] == ["1"])
        assert text(page, "#shadows [data-column=Differs]").split() == ["2", "plan"]
        assert text(page, "#shadows [data-column=Shadow]").split() == ["new", "yaml"]
        for _ in looks(page, 1100, 360):
            assert violations(page, "serious", "critical") == []
        prefer(page, "light")
        resize(page, 1100, 900)
        open_page(page, service)  # the other one is still there: the page asks it each second


def test_page_asks_for_a_key_where_one_is_needed(
    browser: Chrome, service: Service, tmp_path: Path
) -> None:
    with serving(OPEN_TO_ALL, tmp_path) as other:
        browser.get(f"{other.admin_url}/status")
        eventually(lambda: shown(browser, "#access"))
        for key, problem in [
            ("wrong-wrong", "This key is not valid."),
            ("käy", "This key is not valid."),
            (KEY, "This key does not have the scope admin."),
        ]:
            assert not shown(browser, "#figures")
            browser.switch_to.active_element.send_keys(key, Keys.ENTER)
            eventually(lambda: text(browser, "#access-problem") == problem)  # noqa: B023
        browser.switch_to.active_element.send_keys(ADMIN_KEY, Keys.ENTER)
        eventually(lambda: shown(browser, "#figures"))
        eventually(lambda: text(browser, "#pill") == "Ready")
        stored = "return localStorage.length + sessionStorage.length + document.cookie.length"
        assert browser.execute_script(stored) == 0
        assert ADMIN_KEY not in browser.page_source
        browser.refresh()
        eventually(lambda: shown(browser, "#access"))
    open_page(browser, service)
    assert errors(browser)  # the requests without a valid key
