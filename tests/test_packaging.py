"""What is built from this tree, and that it runs where the tree is not."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.processes.proxies import find_tool

pytestmark = [pytest.mark.slow, pytest.mark.ci]

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / ".venv-tools" / "bin"
NOT_SOURCE = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules", "htmlcov"
)
# Of a folder with a tree, in one interpreter: the archives that are wanted, in this order.
BUILD = """\
import os, sys, tarfile
from setuptools import build_meta
folder, *targets = sys.argv[1:]
for target in targets:
    os.mkdir(f"{folder}/{target}")
    if target == "wheel_of_sdist":
        with tarfile.open(f"{folder}/sdist/{sdist}") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4
            archive.extractall(folder)
        os.chdir(f"{folder}/{sdist.removesuffix('.tar.gz')}")
    if target == "sdist":
        sdist = build_meta.build_sdist(f"{folder}/sdist")
    else:
        build_meta.build_wheel(f"{folder}/{target}")
"""
EPOCH = "1700000000"
PLUGINS = {"idv_ldap", "idv_postgres", "idv_redis", "idv_sqlite", "idv_upstream", "idv_yaml"}
COMMANDS = """\
import json, runpy, sys
from click.testing import CliRunner
from importlib import import_module
from tornado_idv.cli import main
ours = map(import_module, sys.argv.pop(1).split())
outputs = []
for arguments in sys.argv[1:]:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    outputs.append(result.stdout)
print(json.dumps([[each.__file__ for each in ours], outputs]), flush=True)
sys.argv[:] = ["tornado-idv", "--version"]
runpy.run_module("tornado_idv", run_name="__main__")
"""


@dataclass(frozen=True)
class Built:
    """The archives: a source archive, a wheel of the tree, and one of the source archive."""

    sdist: Path
    wheel: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Builds from a copy of the tree, without any network."""
    folder = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_SOURCE)
    return Built(*build(folder, "sdist", "wheel", "wheel_of_sdist"))


def build(folder: Path, *targets: str) -> list[Path]:
    """Build archives of the tree in the folder, in their order in `BUILD`."""
    run(sys.executable, "-c", BUILD, str(folder), *targets, cwd=folder / "tree")
    return [archive for target in targets for archive in (folder / target).iterdir()]


def run(*line: str, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        line,
        cwd=cwd,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH, **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def python(built: Built, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with the wheel installed, which borrows only our dependencies.

    Of a folder that is lent by a ``.pth`` file no ``.pth`` file is read, so the way
    back to the checkout of an editable install is not there.
    """
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    interpreter = str(folder / "bin" / "python")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(site)
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "borrowed.pth").write_text("\n".join(sorted(lent)))
    return interpreter


def test_the_source_archive_builds_the_same_wheel(built: Built) -> None:
    ours, theirs = contents(built.wheel), contents(built.wheel_of_sdist)
    assert sorted(ours) == sorted(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert any(name.endswith(".dist-info/RECORD") for name in ours)


def test_the_wheel_holds_the_package_and_the_plugins_whole_and_nothing_else(built: Built) -> None:
    """No package is called ``plugins`` or ``tests``."""
    names = contents(built.wheel)
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tornado_idv", *PLUGINS}
    assert "tornado_idv/py.typed" in names
    data = (ROOT / "tornado_idv/features").glob("*/sta[rt]*/*.*")  # of docs, keys and status
    assert {str(path.relative_to(ROOT)) for path in data} <= set(names)
    sources = [*(ROOT / "tornado_idv").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    modules = {str(path.relative_to(ROOT)).removeprefix("plugins/") for path in sources}
    assert modules == {name for name in names if name.endswith(".py")}


def test_the_wheel_says_what_it_is(built: Built) -> None:
    names = contents(built.wheel)
    (metadata,) = (names[name].decode() for name in names if name.endswith("/METADATA"))
    (points,) = (names[name].decode() for name in names if name.endswith("/entry_points.txt"))
    reported = email.message_from_string(metadata)
    assert reported["Name"] == "tornado-idv"
    assert "Apache-2.0" in (reported["License-Expression"], reported["License"])
    assert reported["Requires-Python"] == ">=3.11"  # without an upper limit
    assert any(name.endswith("/LICENSE") for name in names)
    assert "tornado-idv = tornado_idv.cli:main" in points
    assert all(f"= {plugin}\n" in points for plugin in PLUGINS)


def test_the_wheel_runs_far_from_the_tree(python: str, tmp_path: Path) -> None:
    commands = (
        "init here",
        "plugins --json",
        "check --config here/config.yaml",
        "lookup @alice --json -c here/config.yaml",
    )
    line = (python, "-I", "-c", COMMANDS, " ".join([*PLUGINS, "tornado_idv"]), *commands)
    shown, version = run(*line, cwd=tmp_path).splitlines()
    assert version.startswith("tornado-idv")
    files, outputs = json.loads(shown)
    installed = Path(python).parents[1]
    assert all(Path(file).is_relative_to(installed) for file in files)
    written, kinds, checked, found = outputs
    assert "Your key" in written
    assert set(json.loads(kinds).values()) == PLUGINS
    assert checked.startswith("ok: ")
    assert json.loads(found)["nickname"] == "@alice"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of ``make dist``, in a repository whose one commit is of the tree."""
    for tool in ("twine", "check-wheel-contents", "cyclonedx-py"):
        find_tool(tool, TOOLS)
    git, make = find_tool("git"), find_tool("make")
    tree = tmp_path_factory.mktemp("dist") / "tree"
    shutil.copytree(ROOT, tree, ignore=NOT_SOURCE)
    environment = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_COMMITTER_DATE": f"{EPOCH} +0000",
    }
    me = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    for step in ("init --quiet", "add --all", "commit --quiet --message all"):
        run(git, *me, *step.split(), cwd=tree, **environment)
    (tree / ".venv").symlink_to(sys.prefix)
    (tree / ".venv-tools").symlink_to(TOOLS.parent)
    installed = ("--old-file=.venv/.dev", "--old-file=.venv-tools/.installed")
    line = ("bash", "-c", f'umask 077; exec "{make}" "$@"', "make", *installed, "dist")
    run(*line, cwd=tree, SOURCE_DATE_EPOCH="")
    return tree / "dist"


def test_make_dist_builds_the_same_archives(built: Built, dist: Path) -> None:
    """Of files of another time and umask; they pass twine and check-wheel-contents there."""
    sdist, wheel = (dist / path.name for path in (built.sdist, built.wheel_of_sdist))
    assert sdist.read_bytes() == built.sdist.read_bytes()
    assert wheel.read_bytes() == built.wheel_of_sdist.read_bytes()


def locked() -> dict[str, tuple[str, str]]:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.findall(
        r"^([\w.-]+)==(\S+)([^\\\n]*)((?: \\\n    --hash=\S+)+)", text, re.MULTILINE
    )
    assert len(entries) == len(re.findall(r"^\w", text, re.MULTILINE))
    return {canonicalize_name(name): (version, digests) for name, version, _, digests in entries}


def test_lock_has_every_requirement_with_digests(built: Built) -> None:
    """Renew it with `make lock`."""
    names = contents(built.wheel)
    (metadata,) = (names[name].decode() for name in names if name.endswith("/METADATA"))
    versions = locked()
    for text in email.message_from_string(metadata).get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if "extra ==" in text and not re.search("extra == .(postgres|redis)", text):
            continue
        version, digests = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), text
        assert "--hash=sha256:" in digests
    assert "index-url" not in (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_bill_of_materials_lists_the_lock(built: Built, dist: Path) -> None:
    """That it is valid is checked by cyclonedx-py before it writes it."""
    version = built.wheel.name.split("-")[1]
    bom = json.loads((dist / f"tornado_idv-{version}.cdx.json").read_text(encoding="utf-8"))
    root = bom["metadata"]["component"]
    assert (root["name"], root["version"]) == ("tornado-idv", version)
    assert bom["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")
    assert "serialNumber" not in bom
    components = {canonicalize_name(each["name"]): each for each in bom["components"]}
    assert {name: each["version"] for name, each in components.items()} == {
        name: version for name, (version, _) in locked().items()
    }


def test_files_of_the_tree_name_the_version(built: Built) -> None:
    """It is in setup.py, and copied to tags of images, examples and the changelog."""
    version = built.wheel.name.split("-")[1]
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in (ROOT / "deploy").rglob("*")
        if path.suffix in {".yaml", ".md"} or path.name == "Dockerfile"
    }
    tags = {
        (path.name, tag)
        for path, text in texts.items()
        for tag in re.findall(r"(?:\btornado-idv:|newTag: )(\d[\w.]*)", text)
    }
    assert {name for name, _ in tags} >= {"Dockerfile", "compose.yaml", "kustomization.yaml"}
    assert {tag for _, tag in tags} == {version}
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == version
    openapi = json.loads((ROOT / "openapi.json").read_text(encoding="utf-8"))
    assert openapi["info"]["version"] == version
