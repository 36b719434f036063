"""Any feature can be taken out: its folder, its tests, and its line in the list.

`make test-features` runs this: for each feature the checks of `make check`, the demo of README,
and the tests of the contract, in a copy of the tree without it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.processes.admin import ask_admin
from tornado_idv.client import Client, InvalidKey
from tornado_idv.features import FEATURES

ROOT = Path(__file__).parents[1]
COPIED = (
    *("tornado_idv", "plugins", "tests", "soak", "benchmarks", "docs/generate.py"),
    *("config.yaml", "deploy/demo", "openapi.json", "pyproject.toml"),
)
CHECKS = {
    "lint": ["ruff", "check", "."],
    "types": ["mypy"],
    "layers": ["importlinter.cli", "lint"],
    "contract": ["pytest", "-q", "-p", "no:cacheprovider", "tests/contract"],
}
"""Modules of Python, with their arguments."""
SETTINGS = {
    "docs": "server: {docs: true}",
    "shadow": "backends: [{name: b, kind: yaml, path: users.yaml, shadow: {sample: 1%}}]",
    "shared_cache": "shared_cache: {kind: redis, url: 'redis://localhost/0'}",
    "snapshot": "cache: {snapshot: answers}",
    "verify": "server: {verify: true}",
}
ADMIN_PATHS = {"/health/ready?verbose": None, "/status.json": "status", "/metrics": None}
"""Paths of the admin listener, each with its feature."""
pytestmark = [pytest.mark.slow, pytest.mark.ci]


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'plugins'}"}


def run(tree: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", *map(str, arguments)],
        env=environment(tree),
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.fixture(
    scope="module",
    params=[pytest.param(each.name, marks=pytest.mark.xdist_group(each.name)) for each in FEATURES],
)
def feature(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def tree(feature: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp(feature)
    for name in COPIED:
        copy = tree / name
        copy.parent.mkdir(exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, copy)
        else:
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "node_modules")
            shutil.copytree(ROOT / name, copy, ignore=ignored)
    shutil.rmtree(tree / "tornado_idv" / "features" / feature)
    shutil.rmtree(tree / "tests" / "features" / feature)
    listing = tree / "tornado_idv" / "features" / "__init__.py"
    text, count = re.subn(f'    "{feature}",\n', "", listing.read_text(encoding="utf-8"))
    assert count == 1
    listing.write_text(text, encoding="utf-8")
    demo = (tree / "config.yaml").read_text(encoding="utf-8")
    demo = re.sub(r"port: \d+", "port: 0", demo)
    if feature == "docs":
        demo = demo.replace(", docs: true", "")
    (tree / "config.yaml").write_text(demo, encoding="utf-8")
    return tree


@contextmanager
def serving(tree: Path) -> Iterator[dict[str, str]]:
    """Serve the demo of a tree; yield what it says once it listens."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tornado_idv", "serve", "--ready-fd", "1"],
        env=environment(tree),
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = process.stdout.readline()
            yield json.loads(line) if line.startswith("{") else {"failed": process.stderr.read()}
        finally:
            process.terminate()


def test_service_without_a_feature_serves_and_refuses_its_settings(
    tree: Path, feature: str, tmp_path: Path
) -> None:
    with serving(tree) as service:
        assert "url" in service, service
        with Client(service["url"], service["key"]) as client:
            found = client.find("@alice")
            assert found is not None
            assert client.find_card(found.card_number) == found
            assert client.find("@nobody") is None
        admin = SimpleNamespace(admin_url=service["admin_url"])
        for path, owner in ADMIN_PATHS.items():
            assert ask_admin(admin, path).status == (404 if feature == owner else 200), path
        with Client(service["url"], "unknown") as stranger, pytest.raises(InvalidKey):
            stranger.find("@alice")
    if feature in SETTINGS:
        config = tmp_path / "config.yaml"
        config.write_text(f"profile_sites: [https://a.example]\n{SETTINGS[feature]}\n", "utf-8")
        refused = run(tree, "tornado_idv", "check", "--config-only", "--config", config)
        assert refused.returncode == 1
        assert f"needs the feature {feature}, missing in this installation" in refused.stderr


@pytest.mark.parametrize("check", CHECKS)
def test_tree_without_a_feature_passes(tree: Path, check: str) -> None:
    done = run(tree, *CHECKS[check])
    assert done.returncode == 0, done.stdout + done.stderr
