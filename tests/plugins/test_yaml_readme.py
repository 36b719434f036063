"""The YAML plugin's README: its examples boot."""

import re
from pathlib import Path

import pytest

import idv_yaml
from idv_yaml.backend import YamlBackend
from tornado_idv import ByNickname, User, yaml_loader
from tornado_idv.kit.testing import make_backend
from tornado_idv.registry import open_backends

README = Path(idv_yaml.__file__).with_name("README.md")
ALICE = User("Free", "4000123412341234", "alice")


def examples() -> tuple[list[str], list[str]]:
    """The README's entries of ``backends:``, and its fixtures."""
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    entries = [block for block in blocks if block.startswith("backends:")]
    return entries, [block for block in blocks if block not in entries]


@pytest.mark.parametrize("entry", examples()[0], ids=["short", "long"])
@pytest.mark.parametrize("fixture", examples()[1], ids=["counted", "plain"])
async def test_every_example_of_the_readme_boots(tmp_path: Path, entry: str, fixture: str) -> None:
    """Every entry with every fixture; each of them knows alice."""
    (options,) = yaml_loader.read(entry.encode(), "README.md")["backends"]
    assert options["kind"] == "yaml"
    (tmp_path / options["path"]).write_text(fixture, encoding="utf-8")
    async with open_backends([make_backend(YamlBackend, tmp_path, **options)]) as (backend,):
        assert await backend.find(ByNickname("alice")) == ALICE
