"""The documents are complete and true: settings, hooks, commands, error codes, examples."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args, get_origin

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from pydantic import BaseModel

import tornado_idv
from support.http.repeated_requests import repeating
from support.pages import ROOT, code_blocks, page, section
from support.processes.admin import WITH_ADMIN, ask_admin
from support.processes.editor import as_editor_reads
from support.processes.loggers import put_back
from support.processes.process import Invoke, running
from support.processes.proxies import find_tool
from support.processes.service import CONFIG, FIXTURE, Client, serving
from support.processes.shell_commands import shell_commands
from tornado_idv import BackendOptions
from tornado_idv.admin.listener import ROUTES as OF_CORE
from tornado_idv.cli import main
from tornado_idv.config.kinds import settings_type
from tornado_idv.config.load import load_without_references
from tornado_idv.features import FEATURES
from tornado_idv.http.connection_table import State
from tornado_idv.interfaces import hookspecs
from tornado_idv.kit import testing
from tornado_idv.log_format import json_lines, text_lines
from tornado_idv.metrics.counters import Counters
from tornado_idv.model import ByNickname
from tornado_idv.registry import installed_kinds, load_class, plugin_manager
from tornado_idv.trace_context import parse_trace
from tornado_idv.web.access_log import AccessLog, Ids, LoggedRequest, record_response
from tornado_idv.web.errors import ApiError
from tornado_idv.web.response import Result

README = page("README.md")
LOGGING = page("docs/reference/logging.md")
PLUGIN_API = page("docs/reference/plugin-api.md")
KEYS = page("docs/guide/keys.md")
EXAMPLE = ROOT / "examples" / "idv_example"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/*.md")])


def first_cells(text: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of a model's settings; those of a list's items have ``[]``."""
    for name, field in model.model_fields.items():
        yield prefix + name
        kind = field.annotation
        inner = kind
        while arguments := get_args(inner):
            inner = arguments[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from settings_of(
                inner, f"{prefix}{name}{'[]' if get_origin(kind) is tuple else ''}."
            )


def test_every_setting_is_documented() -> None:
    documented = first_cells(page("docs/reference/configuration.md"))
    assert documented == set(settings_of(settings_type(installed_kinds(plugin_manager()))))


def test_every_option_is_documented_in_its_plugins_readme() -> None:
    for kind, backend in installed_kinds(plugin_manager()).backends.items():
        own = set(load_class(backend).options_type.model_fields) - set(BackendOptions.model_fields)
        readme = page(f"plugins/idv_{kind}/README.md")
        documented = {cell.partition(".")[0] for cell in first_cells(readme)}
        assert own - documented == set(), kind
        headings = re.findall(r"^#+ (.+)$", readme, re.MULTILINE)
        assert [*filter({*HEADINGS}.__contains__, headings)] == HEADINGS


HEADINGS = ["Name", "Description", "Options", "Failures", "Examples"]


@pytest.mark.parametrize("feature", [each.name for each in FEATURES])
def test_readme_of_a_feature_names_its_modules(feature: str) -> None:
    folder = ROOT / "tornado_idv" / "features" / feature
    named = set(re.findall(r"^\| `(\w+\.py)` ", (folder / "README.md").read_text(), re.MULTILINE))
    assert named == {each.name for each in folder.glob("*.py")} - {"__init__.py"}


def test_every_error_code_is_documented_with_its_status() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", page("docs/reference/http.md"), re.MULTILINE)
    assert {(code, int(status)) for code, status in rows} == {
        (error.code, error.status) for error in ApiError
    }


async def test_every_field_of_the_access_log_is_documented() -> None:
    written: list[str] = []
    log = AccessLog(written.append, json_lines, "hash")
    trace = parse_trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    subject = log.subject_of(ByNickname("alice"))
    request = LoggedRequest("a-1", trace, "POST", "identify/url", "192.0.2.7", "shop", subject)
    reason = "no answer within 2 s"
    result = Result(503, b"{}", "", "backend_unavailable", reason, "miss", "crm")
    record_response(Counters(), log, request, result, 1.0)
    log.flush()
    example = json.loads(code_blocks(LOGGING, "json")[0])
    assert list(json.loads(written[0])) == list(example)
    every, _, access = LOGGING.partition("## The access log")
    assert {*example} == first_cells(every) | first_cells(access.partition("\n##")[0])


def test_canary_of_each_example_protects_both_kinds_of_lookups() -> None:
    pages = [*PAGES, *ROOT.glob("deploy/**/*.yaml"), *ROOT.glob("examples/**/*.md")]
    text = "\n".join(page.read_text() for page in pages)
    found = re.findall(r"^ *canary: [\[{].*", text, re.MULTILINE)
    assert len(found) > 15
    assert [each for each in found if "nickname:" not in each or "card_number:" not in each] == []


def test_console_example_of_the_log_is_right() -> None:
    (example,) = code_blocks(LOGGING, "text")
    record = {
        "timestamp": "2026-11-22T09:30:00.123Z",
        "level": "warning",
        "logger": "tornado_idv.lookup.guard",
        "event": "backend crm: no answer within 2 s",
        "repeated": 12,
    }
    assert text_lines([record]) == example


def test_every_way_to_log_users_is_documented() -> None:
    section = LOGGING.partition("### Users")[2].partition("\n## ")[0]
    assert first_cells(section) - {"logging.ids"} == {*get_args(Ids)}


def test_every_exit_code_of_serve_is_documented() -> None:
    serve = main.get_command(click.Context(main), "serve")
    assert serve is not None
    assert serve.help is not None
    codes = re.findall(r"(?:Exit codes: |; )(\d+)", serve.help)
    assert codes == ["0", "1", "3", "128"]


def test_every_hook_is_documented_with_its_arguments() -> None:
    rows = re.findall(r"^\| `(idv_\w+)` \|([^|]*)\|", PLUGIN_API, re.MULTILINE)
    documented = {hook: tuple(re.findall(r"`(\w+)`", arguments)) for hook, arguments in rows}
    specs = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("idv_")}
    assert documented == {
        name: spec.__code__.co_varnames[: spec.__code__.co_argcount] for name, spec in specs.items()
    }


CONFIGURATIONS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{i}")
    for path in PAGES
    for i, block in enumerate(code_blocks(path.read_text(encoding="utf-8"), "yaml"), start=1)
    if not re.search("^users:", block, re.MULTILINE)  # a fixture: test_yaml.py loads it
]


@pytest.mark.slow
@pytest.mark.parametrize("block", CONFIGURATIONS)
def test_every_configuration_in_the_documents_is_right(tmp_path: Path, block: str) -> None:
    """For the loader and for an editor; each is laid over a whole one, without its secrets."""
    text = block if "profile_sites" in block else f"profile_sites: [https://x.example]\n{block}"
    if "backends:" not in text:
        text += "backends: [{name: users, kind: yaml, path: users.yaml}]\n"
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    load_without_references(path, installed_kinds(plugin_manager()), {})
    validator = Draft202012Validator(json.loads((ROOT / "config.schema.json").read_text()))
    assert [error.message for error in validator.iter_errors(as_editor_reads(text))] == []


def test_documented_plugin_is_the_example() -> None:
    text = page("docs/guide/plugins.md")
    plugin, suite = code_blocks(text, "python")
    (project,) = code_blocks(text, "toml")
    documented = {"idv_example.py": plugin, "test_idv_example.py": suite, "pyproject.toml": project}
    for name, block in documented.items():
        text = (EXAMPLE / name).read_text(encoding="utf-8")
        assert all(part in text for part in re.split(r"\n{3,}", block)), name


@pytest.mark.slow
def test_example_of_a_plugin_passes_its_suite(pytester: pytest.Pytester) -> None:
    for name in ("idv_example.py", "test_idv_example.py", "pyproject.toml"):
        shutil.copy(EXAMPLE / name, pytester.path)
    # Installed plugins of pytest are found, and warn, in new interpreters only.
    outcome = pytester.runpytest_subprocess("-q", "-p", "no:anyio")
    outcome.assert_outcomes(passed=26, warnings=0)


@pytest.mark.slow
def test_installed_example_is_served(tmp_path: Path) -> None:
    """From its wheel, which is unpacked as pip does it, which takes 3 s."""
    shutil.copytree(EXAMPLE, tmp_path / "example")
    build = "from setuptools import build_meta; build_meta.build_wheel('wheel')"
    line = [sys.executable, "-c", build]
    folder = tmp_path / "example"
    subprocess.run(line, cwd=folder, check=True, capture_output=True, timeout=100)
    (wheel,) = (folder / "wheel").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    config = tmp_path / "config.yaml"
    config.write_text(f"{CONFIG}  - {{name: members, kind: csv, path: users.csv}}\n", "utf-8")
    users = "nickname,card_number,plan\n@alice,4000123412341234,Free\nbob,0012,Pro\n"
    (tmp_path / "users.csv").write_text(users, encoding="utf-8-sig")
    with running(config, path=tmp_path / "installed") as service:
        client = Client(service.port)
        assert json.loads(client.by_input("@alice").body)["plan"] == "Free"
        assert json.loads(client.by_card("0012").body)["nickname"] == "@bob"
        assert client.by_input("@carol").code == "not_found"


def test_every_endpoint_of_the_admin_listener_is_documented() -> None:
    cells = first_cells(page("docs/reference/admin.md"))
    rows = {tuple(each.split()) for each in cells if " /" in each}
    places = [each.admin_routes for each in FEATURES if each.name != "double"]  # on its own page
    routes = [OF_CORE, *(resolve_name(each.partition(":")[0]).ROUTES for each in places if each)]
    assert rows == {(each.allowed[0], path) for some in routes for path, each in some.items()}


def test_every_metric_is_documented_with_its_type_and_labels(tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text(FIXTURE, encoding="utf-8")
    shadow = "  - {name: new, kind: yaml, path: users.yaml, shadow: {sample: 5%}}\nadmin:"
    with serving(WITH_ADMIN.replace("admin:", shadow), tmp_path) as service:
        Client(service.port).by_input("@alice")
        text = ask_admin(service, "/metrics", Accept="application/openmetrics-text").body.decode()
    suffixes = {"counter": "_total", "info": "_info"}
    exposed = {
        (
            family.name + suffixes.get(family.type, ""),
            family.type,
            frozenset(name for each in family.samples for name in each.labels) - {"le"},
        )
        for family in parse_openmetrics(text)
    }
    row = re.compile(r"^\| `((?:idv|process)_\w+)` \| (\w+) \| (.*) \|$", re.MULTILINE)
    rows = row.findall(page("docs/reference/metrics.md"))
    assert {(name, kind) for name, kind, _ in rows} == {each[:2] for each in exposed}
    meanings = {name: meaning for name, _, meaning in rows}
    for name, _, labels in exposed:
        assert all(f"`{label}`" in meanings[name] for label in labels), name


def test_first_request_of_the_readme_gets_its_response(tmp_path: Path) -> None:
    """The demo is served on a free port; the request is otherwise that of the page."""
    (console,) = code_blocks(README, "console")
    _, response = console.rsplit("\n", 2)[-3:-1]
    fields = dict(re.findall(r"-H '([^:]+): ([^']+)'", console))
    body = re.search(r"-d '(.+)'", console)
    path = re.search(r"curl http://127\.0\.0\.1:8080(\S+)", console)
    assert body is not None
    assert path is not None
    config = (ROOT / "config.yaml").read_text(encoding="utf-8")
    config = re.sub(r"port: 808\d", "port: 0", config).replace("deploy/", f"{ROOT}/deploy/")
    with serving(config, tmp_path) as service:
        reply = Client(service.port).send(
            "POST", path[1], {"Host": "127.0.0.1", **fields}, body[1].encode()
        )
    assert (reply.status, reply.body.decode()) == (200, response)


def test_documented_table_of_users_is_served(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    assert invoke("init").exit_code == 0
    kept, _, _ = config.read_text(encoding="utf-8").partition("backends:")
    sql, stored = code_blocks(page("docs/tutorial/your-users.md"), "yaml", "sql")
    with closing(sqlite3.connect(tmp_path / "people.db")) as connection:
        connection.executescript(sql)
    config.write_text(kept + stored, encoding="utf-8")
    assert invoke("check").exit_code == 0
    done = invoke("lookup", "@alice")
    assert (done.exit_code, "4000123412341234" in done.stdout) == (0, True)


@pytest.fixture
def in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let shells find ``tornado-idv``."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    with shell_commands(programs):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("in_path")
def test_walkthrough_of_keys_fails_no_request(tmp_path: Path) -> None:
    find_tool("curl")
    init, issue, serve, use, rotate, replace, revoke = code_blocks(KEYS, "sh")
    auth, *_ = code_blocks(KEYS, "yaml")
    run_in_shell(init, tmp_path)
    folder = tmp_path / "my-directory"
    config = folder / "config.yaml"
    text = re.sub(r"port: 808\d", "port: 0", config.read_text(encoding="utf-8"))
    text = re.sub(r"^auth:\n(?: .*\n)+", auth, text, flags=re.MULTILINE)
    config.write_text(text, encoding="utf-8")
    run_in_shell(issue, folder)
    old = (folder / "shop.token").read_text(encoding="utf-8").strip()
    assert serve == "tornado-idv serve\n"
    with running(config) as service, repeating(service.port, old) as with_old:
        assert "4000123412341234" in run_in_shell(use, folder, service.port)
        assert "4000123412341234" in run_in_shell(rotate, folder, service.port)
        run_in_shell(replace, folder)
        new = (folder / "shop.token").read_text(encoding="utf-8").strip()
        with repeating(service.port, new) as with_new:
            with_new.wait_for(200)
            with_old.wait_for(200)
            assert with_old.statuses().keys() == with_new.statuses().keys() == {200}
            run_in_shell(revoke, folder)
            with_new.wait_for(401)


def run_in_shell(block: str, folder: Path, port: int = 8080) -> str:
    return subprocess.run(
        ["sh", "-eu", "-c", block.replace(":8080/", f":{port}/")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_documented_import_is_accepted(tmp_path: Path) -> None:
    (line,) = code_blocks(KEYS, "json")
    arguments = ["keys", "import", "-", "--create", "--store", str(tmp_path / "keys.db")]
    with put_back():
        assert CliRunner().invoke(main, arguments, input=line).exit_code == 0


def test_public_names_for_tests_are_documented() -> None:
    introduction = PLUGIN_API.partition("\n## ")[0]
    names = re.findall(r"`(\w+)`", introduction.partition("below, and")[2].partition(" of ")[0])
    assert names == testing.__all__


def test_every_public_name_is_documented() -> None:
    table = PLUGIN_API.partition("## Public names")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*tornado_idv.__all__}


def test_every_state_of_a_connection_is_documented() -> None:
    (diagram,) = code_blocks(page("docs/explanation/connections.md"), "mermaid")
    assert set(re.findall(r"\b[A-Z]{4,}\b", diagram)) == {state.name for state in State}


def test_paths_in_the_documents_exist() -> None:
    paths = [
        path
        for page in PAGES
        for path in re.findall(
            r"`((?:tornado_idv|plugins|benchmarks|tests|docs|deploy)/[\w./]*)`",
            page.read_text(encoding="utf-8"),
        )
    ]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "heading", ["Where to change what", "How a feature is built", "Tests that guard the promise"]
)
def test_places_to_change_exist(heading: str) -> None:
    places = re.findall(
        r"`([\w./]+(?:\.py|/))`", section(page("CONTRIBUTING.md"), f"\n## {heading}")
    )
    folders = (ROOT, ROOT / "tornado_idv")
    missing = [each for each in places if not any((folder / each).exists() for folder in folders)]
    assert missing == []
    assert len(places) > 5


def test_way_of_a_lookup_can_be_read_in_an_afternoon() -> None:
    text = section(page("docs/explanation/architecture.md"), "## An afternoon of reading")
    *core, plugin = re.findall(r"`([\w./]+\.py)`", text)
    paths = {*(ROOT / "tornado_idv" / each for each in core), ROOT / plugin}
    assert len(paths) == len(core) + 1 <= 40
    assert sum(each.read_text(encoding="utf-8").count("\n") for each in paths) <= 5000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        if anchor and not anchor.startswith("tornado_idv."):  # which the site makes of docstrings
            assert anchor in anchors(linked.read_text(encoding="utf-8")), f"{target}#{anchor}"


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_readme_is_short() -> None:
    assert len(README.split()) <= 1000


def test_relative_rates_fit_the_rates_beside_them() -> None:
    text = page("docs/explanation/performance.md")
    table = text.partition("| server | responses/s | relative |\n")[2].partition("\n\n")[0]
    rows = [row.strip("| ").replace("*", "").split(" | ") for row in table.splitlines()[1:]]
    rates = {name: int(rate.replace(",", "")) for name, rate, _ in rows}
    assert rates
    assert {name: relative for name, _, relative in rows} == {
        name: f"{rate / rates['this service']:.2f}" for name, rate in rates.items()
    }


def test_first_screen_says_how_to_run_and_test_it_and_on_which_systems() -> None:
    first = "\n".join(README.splitlines()[:25])
    for said in ("Python 3.11 or newer", "make run ", "make test ", "Linux", "macOS", "WSL 2"):
        assert said in first
