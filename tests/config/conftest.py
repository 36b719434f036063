"""Two tiny kinds of backend, and files to load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from support.fixtures.configs import Load, ProblemsIn
from tornado_idv.config.load import load
from tornado_idv.config.settings import Settings
from tornado_idv.errors import ConfigError
from tornado_idv.interfaces.backend import Backend, BackendOptions
from tornado_idv.interfaces.hookspecs import Kinds
from tornado_idv.model import Query, User
from tornado_idv.options import ConfigPath, Options, Secret


class Columns(Options):
    """The columns of a table."""

    nickname: str = "nickname"
    """The column of nicknames."""
    card_number: str = "card_number"
    """The column of card numbers."""


class TableOptions(BackendOptions):
    """The options of a table."""

    path: ConfigPath
    """Where the table is."""
    columns: Columns = Columns()
    """The names of its columns."""


class NoAuth(Options):
    """No credential."""

    kind: Literal["none"]
    """Which kind of credential this is."""


class TokenAuth(Options):
    """A token."""

    kind: Literal["token"]
    """Which kind of credential this is."""
    token: Secret
    """What is shown."""


class RemoteOptions(BackendOptions):
    """The options of something remote."""

    url: str
    """Where it is."""
    auth: Annotated[NoAuth | TokenAuth, Field(discriminator="kind")] | None = None
    """The credential to show."""
    pool: int | bool = 4
    """How many connections, or whether any are kept."""
    headers: dict[str, int] = Field(default_factory=dict)
    """Headers to send."""
    query: dict[str, str] = Field(default_factory=dict)
    """Parameters to send."""


class Table(Backend[TableOptions]):
    options_type = TableOptions

    async def find(self, query: Query) -> User | None:
        return None


class Remote(Backend[RemoteOptions]):
    options_type = RemoteOptions

    async def find(self, query: Query) -> User | None:
        return None


@pytest.fixture(scope="session")
def kinds() -> Kinds:
    return Kinds({"table": Table, "remote": Remote})


@pytest.fixture
def load_text(tmp_path: Path, kinds: Kinds) -> Load:
    """Writes a configuration into a folder of its own and loads it."""

    def load_text(text: str, environ: Mapping[str, str] | None = None, **other: Any) -> Settings:
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, other.get("kinds", kinds), environ or {})

    return load_text


@pytest.fixture
def problems_in(load_text: Load, tmp_path: Path) -> ProblemsIn:
    """The problems of a configuration, as printed, without the name of the file."""

    def problems_in(text: str, environ: Mapping[str, str] | None = None, **other: Any) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_text(text, environ, **other)
        return [
            str(problem).removeprefix(f"{tmp_path / 'config.yaml'}:")
            for problem in caught.value.problems
        ]

    return problems_in
