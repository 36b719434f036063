"""The page of the API in a browser: what the author of a client sees and can do."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from support.processes.browser import NEEDS_BROWSER, looks, resize, violations
from support.processes.process import eventually
from support.processes.proxies import find_tool
from support.processes.service import CONFIG, KEY, USERS, serving
from tornado_idv.service.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.ci, NEEDS_BROWSER]
SERVER = "port: 0, base_path: /identity, docs: true, verify: true,"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    config = CONFIG.replace("port: 0,", SERVER) + USERS
    with serving(config, tmp_path_factory.mktemp("docs")) as running:
        yield running


@pytest.fixture
def page(browser: Chrome, service: Service) -> Iterator[Chrome]:
    """The page; in the end, its console has no error and all it loaded came from the service."""
    resize(browser, 1000, 900)
    origin = f"http://127.0.0.1:{service.port}"
    browser.get(f"{origin}/identity/")
    assert browser.current_url == f"{origin}/identity/docs"
    eventually(lambda: find(browser, "#errors details"))
    yield browser
    messages = [each["message"] for each in browser.get_log("browser")]
    assert [each for each in messages if "the server responded with a status of" not in each] == []
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert [each for each in loaded if not each.startswith((f"{origin}/", "data:"))] == []


def find(place: Chrome | WebElement, selector: str) -> list[WebElement]:
    return place.find_elements(By.CSS_SELECTOR, selector)


def button(place: WebElement, name: str) -> WebElement:
    (found,) = [each for each in find(place, "button") if each.text == name]
    return found


def write_body(section: WebElement, body: str) -> None:
    area = section.find_element(By.TAG_NAME, "textarea")
    area.clear()
    area.send_keys(body)


def send(page: Chrome, body: str | None, key: str = KEY) -> str:
    """Send the first operation with a body, that of the page unless given; return the result."""
    field = page.find_element(By.ID, "key")
    field.clear()
    field.send_keys(key)
    section = page.find_element(By.ID, "identifyByUrl")
    if body is not None:
        write_body(section, body)
    result = section.find_element(By.CSS_SELECTOR, "[aria-live]")
    page.execute_script("arguments[0].textContent = ''", result)
    button(section, "Send").click()
    eventually(lambda: result.text)
    return result.text


def test_lookup_from_the_page_finds_the_example(page: Chrome) -> None:
    result = send(page, None)
    assert result.startswith("200 OK")
    assert '"nickname": "@alice"' in result
    assert "X-Request-ID" in result


def test_error_is_shown_with_its_cause(page: Chrome) -> None:
    for body, key, shown in [
        ('{"input": "@absent"}', KEY, ["404 Not Found", '"code": "not_found"']),
        ('{"input": "absent"}', KEY, ["422", "X-Error-Reason\nnickname_without_at"]),
        ('{"input": "@alice"}', "wrong", ["401 Unauthorized"]),
    ]:
        result = send(page, body, key)
        assert [each for each in shown if each not in result] == []


def test_every_status_and_cause_is_explained(page: Chrome) -> None:
    for status, text in (
        ("404", "not_found"),
        ("422", "nickname_without_at"),
        ("503", "unchanged"),
    ):
        error = page.find_element(By.ID, f"error-{status}")
        assert not find(error, "pre")[0].is_displayed()
        error.find_element(By.TAG_NAME, "summary").click()
        assert text in error.text


def test_response_to_another_key_is_removed(page: Chrome) -> None:
    assert send(page, None, "wrong").startswith("401")
    button(page.find_element(By.ID, "key-form"), "Check").click()
    eventually(lambda: page.find_element(By.ID, "key-result").text.startswith("401"))
    page.find_element(By.ID, "key").send_keys("x")
    assert page.find_element(By.ID, "key-result").text == ""
    assert find(page, "#identifyByUrl [aria-live]")[0].text == ""


def test_request_is_sent_by_keyboard_from_its_body(page: Chrome) -> None:
    page.find_element(By.ID, "key").send_keys(KEY)
    area = page.find_element(By.CSS_SELECTOR, "#identifyByUrl textarea")
    result = page.find_element(By.CSS_SELECTOR, "#identifyByUrl [aria-live]")
    for modifier in (Keys.CONTROL, Keys.META):
        page.execute_script("arguments[0].textContent = ''", result)
        area.send_keys(modifier, Keys.ENTER)
        eventually(lambda: result.text)
        assert result.text.startswith("200 OK")


def test_key_is_checked(page: Chrome) -> None:
    page.find_element(By.ID, "key").send_keys(KEY)
    button(page.find_element(By.ID, "key-form"), "Check").click()
    result = page.find_element(By.ID, "key-result")
    eventually(lambda: result.text)
    assert result.text == "caller: identify:card, identify:url; does not expire"


@pytest.mark.parametrize(
    ("language", "command"),
    [
        ("curl", ["sh", "-c"]),
        ("Python", [sys.executable, "-c"]),
        ("JavaScript", ["node", "--input-type=module", "-e"]),
    ],
)
def test_code_works_as_written(page: Chrome, language: str, command: list[str]) -> None:
    """Of the example of each operation; the key is in the environment."""
    program = "curl" if language == "curl" else command[0]
    find_tool(program)
    environment = {**os.environ, "IDV_KEY": KEY}
    for operation, shown in (
        ("identifyByUrl", "alice"),
        ("identifyByCard", "alice"),
        ("identifyMany", "alice"),
        ("describeKey", "caller"),
        ("identifyByUrl", "nickname_without_at"),
    ):
        section = page.find_element(By.ID, operation)
        if shown == "nickname_without_at":
            write_body(section, '{"input": "alice"}')
        button(section, language).click()
        code = section.find_element(By.CSS_SELECTOR, "pre.code").text
        done = subprocess.run(
            [*command, code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert shown in done.stdout, operation


def test_code_shows_the_edited_body_and_is_copied(page: Chrome) -> None:
    section = page.find_element(By.ID, "identifyByUrl")
    write_body(section, '{"input": "it\'s"}')
    code = section.find_element(By.CSS_SELECTOR, "pre.code").text
    assert code.endswith("""-d '{"input": "it'\\''s"}'""")
    button(section, "Copy").click()
    status = section.find_element(By.CSS_SELECTOR, "[role=status]")
    eventually(lambda: status.text)


def test_page_is_accessible(page: Chrome) -> None:
    """With a response shown, and on a phone without scrolling to the side."""
    send(page, '{"input": "alice"}')
    for _ in looks(page, 1000, 390):
        assert violations(page) == []
