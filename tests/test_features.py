"""Any feature can be taken out: its folder, and its line in the list.

import-linter sees that nothing else imports it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tornado_idv.client import Client, InvalidKey
from tornado_idv.features import FEATURES

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "docs": "server: {docs: true}",
    "shadow": "backends: [{name: b, kind: yaml, path: users.yaml, shadow: {sample: 1%}}]",
    "shared_cache": "shared_cache: {kind: redis, url: 'redis://localhost/0'}",
    "snapshot": "cache: {snapshot: answers}",
    "verify": "server: {verify: true}",
}
pytestmark = pytest.mark.slow


def run(tree: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of this tree."""
    return subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{tree}:{tree / 'plugins'}"},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the product without a feature."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("tornado_idv", "plugins"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    features = tmp_path / "tornado_idv" / "features"
    shutil.rmtree(features / request.param)
    listing = features / "__init__.py"
    text, count = re.subn(f'    "{request.param}",\n', "", listing.read_text(encoding="utf-8"))
    assert count == 1
    listing.write_text(text, encoding="utf-8")
    demo = (ROOT / "config.yaml").read_text(encoding="utf-8")
    demo = re.sub(r"port: \d+", "port: 0", demo.replace("deploy/demo/users.yaml", "users.yaml"))
    if request.param == "docs":
        demo = demo.replace(", docs: true", "")
    (tmp_path / "config.yaml").write_text(demo, encoding="utf-8")
    shutil.copy(ROOT / "deploy" / "demo" / "users.yaml", tmp_path)
    return tmp_path


@contextmanager
def serving(tree: Path) -> Iterator[dict[str, str]]:
    """Serve the demo of a tree; yield what it says once it listens."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tornado_idv", "serve", "--ready-fd", "1"],
        env={**os.environ, "PYTHONPATH": f"{tree}:{tree / 'plugins'}"},
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


@pytest.mark.parametrize("tree", [each.name for each in FEATURES], indirect=True)
def test_service_without_a_feature_serves_and_refuses_its_settings(
    tree: Path, request: pytest.FixtureRequest
) -> None:
    feature = request.node.callspec.params["tree"]
    with serving(tree) as service:
        assert "url" in service, service
        with Client(service["url"], service["key"]) as client:
            found = client.find("@alice")
            assert found is not None
            assert client.find_card(found.card_number) == found
            assert client.find("@nobody") is None
        for path in ("status.json", "metrics"):
            with urlopen(f"{service['admin_url']}/{path}", timeout=10) as response:
                assert response.status == 200
        with Client(service["url"], "unknown") as stranger, pytest.raises(InvalidKey):
            stranger.find("@alice")
    if feature in SETTINGS:
        (tree / "config.yaml").write_text(
            f"profile_sites: [https://a.example]\n{SETTINGS[feature]}\n", encoding="utf-8"
        )
        refused = run(tree, "-m", "tornado_idv", "check", "--config-only")
        assert refused.returncode == 1
        assert f"needs the feature {feature}, missing in this installation" in refused.stderr
