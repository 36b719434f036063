"""A service with users, for clients."""

from collections.abc import Iterator

import pytest

from support.processes.service import serving_yaml
from tornado_idv.service.service import Service


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_yaml(tmp_path_factory.mktemp("client")) as running:
        yield running
