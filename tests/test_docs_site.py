"""The tree of the documentation: its size, its generated pages, its code blocks, its site."""

import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import click
import pytest

import tornado_idv
from support.pages import ROOT, all_blocks
from support.processes.proxies import find_tool
from tornado_idv.cli import main
from tornado_idv.interfaces import hookspecs
from tornado_idv.kit import testing

DOCS = ROOT / "docs"
PAGES = sorted(
    {*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "deploy" / "README.md"}
    | {*ROOT.glob("plugins/*/*.md"), *ROOT.glob("examples/*/README.md")}
)
CHECKED_HERE = {"console", "json", "sh", "yaml"}
NO_CODE = {"mermaid", "text"}
TESTS = {
    ("docs/guide/deleting-accounts.md", "ini"): "test_docs_testing.py",
    ("docs/guide/deploy.md", "haproxy"): "deploy/test_deploy_proxies.py",
    ("docs/guide/deploy.md", "nginx"): "deploy/test_deploy_proxies.py",
    ("docs/guide/keys.md", "sql"): "keys/test_store_postgres.py",
    ("docs/guide/plugins.md", "python"): "test_docs.py",
    ("docs/guide/plugins.md", "toml"): "test_docs.py",
    ("docs/guide/testing.md", "python"): "test_docs_testing.py",
    ("docs/reference/client.md", "python"): "test_docs_testing.py",
    ("docs/reference/http.md", "http"): "test_docs_http.py",
    ("docs/reference/http.md", "python"): "test_docs_http.py",
    ("docs/reference/limits.md", "http"): "test_docs_http.py",
    ("docs/tutorial/your-users.md", "sql"): "test_docs.py",
    ("plugins/idv_postgres/README.md", "sql"): "plugins/test_postgres.py",
    ("plugins/idv_redis/README.md", "lua"): "support/databases/redis_cluster.py",
    ("plugins/idv_sqlite/README.md", "sql"): "plugins/test_sqlite.py",
}
"""Where blocks of other languages are run, by page and language."""


def test_pages_are_short() -> None:
    """Only references, which are read by searching, may be longer."""
    lines = {
        str(page.relative_to(DOCS)): len(page.read_text(encoding="utf-8").splitlines())
        for page in DOCS.rglob("*.md")
        if page.parent.name != "reference"
    }
    assert {page: count for page, count in lines.items() if count > 250} == {}


def test_every_page_is_in_the_index_and_in_the_site() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.glob("*/*.md"):
        path = str(page.relative_to(DOCS))
        assert f"]({path})" in index
        assert f"- {path}\n" in navigation


def test_page_of_commands_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    found = import_module("generate")
    assert found.PAGE.read_text(encoding="utf-8") == found.page(), "run make docs"


def blocks() -> Iterator[tuple[str, str, str]]:
    """Yield the place, the language and the text of each code block."""
    for page in PAGES:
        for line, language, code in all_blocks(page.read_text(encoding="utf-8")):
            yield f"{page.relative_to(ROOT)}:{line}", language, code


def of(*languages: str) -> list[object]:
    return [
        pytest.param(text, id=place) for place, language, text in blocks() if language in languages
    ]


def test_every_block_of_code_is_run_or_read_by_a_test() -> None:
    missing = {
        place: language or "no language"
        for place, language, _ in blocks()
        if language not in CHECKED_HERE | NO_CODE
        and (place.partition(":")[0], language) not in TESTS
    }
    assert missing == {}, "write a test that runs these blocks, and name it in TESTS"


def test_blocks_that_are_run_elsewhere_exist_and_are_read_there() -> None:
    found = {(place.partition(":")[0], language) for place, language, _ in blocks()}
    assert {*TESTS} <= found
    for (page, language), test in TESTS.items():
        text = (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert Path(page).name in text
        assert f"```{language}" in text or f'"{language}")' in text, test


@pytest.mark.parametrize("text", of("json"))
def test_json_can_be_read(text: str) -> None:
    for document in text.splitlines() if text.startswith("{") and "\n{" in text else [text]:
        json.loads(document)


@pytest.mark.parametrize("text", of("sh", "console"))
def test_commands_exist_with_their_options(text: str) -> None:
    """Of ``tornado-idv``; the syntax is the shell's."""
    if text.startswith("$ "):
        lines = re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)
        text = "\n".join(lines)
    checked = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in re.findall(r"(?:^|[;&|(]\s*|-- )tornado-idv ([^;&|>\n)]*)", joined, re.MULTILINE):
        words = shlex.split(line.partition(" -- ")[0], comments=True)
        group: click.Command = main
        while isinstance(group, click.Group) and words and not words[0].startswith("-"):
            command = group.get_command(click.Context(group), words[0])
            assert command is not None, line
            group = command
            words.pop(0)
        options = {
            each for option in group.params for each in (*option.opts, *option.secondary_opts)
        }
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= options | {"--help", "-h", "--version"}, line


class _Resources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "link", "img", "iframe"}:
            self.found += [value for name, value in attrs if name in {"src", "href"} and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make check` builds it: every link and anchor leads somewhere.

    Without ``--quiet``, which hides warnings from ``--strict`` too (mkdocs/mkdocs#4126).
    """
    mkdocs, site = Path(sys.executable).with_name("mkdocs"), tmp_path_factory.mktemp("site")
    if not mkdocs.exists():
        pytest.skip("mkdocs-material is not installed; `make check` does it")
    line = [mkdocs, "build", "--strict", "--site-dir", site]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.ci
@pytest.mark.slow
def test_site_shows_every_public_name_with_its_signature_and_docstring(site: Path) -> None:
    page = (site / "reference" / "plugin-names.html").read_text(encoding="utf-8")
    sections = re.split(r'<h[23] id="tornado_idv\.([\w.]+)"', page)[1:]
    texts = (unescape(re.sub(r"<[^>]+>", "", each)) for each in sections[1::2])
    shown = dict(zip(sections[::2], texts, strict=True))
    hooks = [name for name in vars(hookspecs) if name.startswith("idv_")]
    public = {"kit.mapping": tornado_idv.mapping}
    public |= {name: getattr(tornado_idv, name) for name in {*tornado_idv.__all__} - {"mapping"}}
    public |= {f"interfaces.hookspecs.{name}": getattr(hookspecs, name) for name in hooks}
    public |= {f"kit.testing.{name}": getattr(testing, name) for name in testing.__all__}
    assert {*public} - {*shown} == set()
    for name, value in public.items():
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
            summary = re.sub(r"[`*]", "", str(inspect.getdoc(value))).splitlines()[0]
            assert summary in shown[name]
    assert "find(query: Query) -> User | BackendResult | None" in shown["Backend"]


@pytest.mark.ci
@pytest.mark.slow
def test_site_requests_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        resources = _Resources()
        resources.feed(text)
        assert [each for each in resources.found if re.match(r"(https?:)?//", each)] == []
        assert 'class="mermaid"' not in text  # for which the theme loads a script from elsewhere
    for style in site.rglob("*.css"):
        assert not re.search(
            r"(url\(|@import)[\s'\"]*(https?:)?//", style.read_text(encoding="utf-8")
        )
    steps = (site / "guide" / "deploy.html").read_text(encoding="utf-8").partition("<ol>\n<li>")[2]
    assert steps.partition("</ol>")[0].count("\n<li>") == 8  # of 9: code does not end the list


@pytest.mark.slow
def test_man_pages_are_written_and_can_be_formatted(tmp_path: Path) -> None:
    pytest.importorskip("click_man", reason="click-man is not installed; `make check` does it")
    line = [sys.executable, DOCS / "generate.py", "--man", tmp_path]
    subprocess.run(line, check=True, capture_output=True, timeout=100)
    pages = sorted(path.name for path in tmp_path.iterdir())
    assert {"tornado-idv.1", "tornado-idv-keys-issue.1", "tornado-idv-postgres-init.1"} < {*pages}
    page = tmp_path / "tornado-idv-serve.1"
    command = [find_tool("groff"), "-man", "-Tutf8", "-ww", page]
    done = subprocess.run(command, capture_output=True, check=True)
    assert b"takes any free port" in done.stdout
    assert done.stderr == b""
