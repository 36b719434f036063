"""One service that every test of the deployment files may use."""

from collections.abc import Iterator

import pytest

from support.processes.admin import WITH_ADMIN
from support.processes.process import ServiceProcess, running
from support.processes.service import FIXTURE, Client

SERVER = "server: {port: 0, health_path: /healthz, trusted_proxies: [127.0.0.1]}"


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with an admin listener, behind a proxy on loopback; it has found a user."""
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "users.yaml").write_text(FIXTURE)
    config = folder / "config.yaml"
    canary = WITH_ADMIN.replace("users.yaml", "users.yaml, canary: {nickname: '@alice'}").replace(
        "admin:", "  - {name: new, kind: yaml, path: users.yaml, shadow: {sample: 5%}}\nadmin:"
    )
    lines = [SERVER if line.startswith("server:") else line for line in canary.splitlines()]
    config.write_text("\n".join([*lines, "logging: {level: info, format: json}", ""]))
    with running(config) as process:
        assert Client(process.port).by_input("@alice").status == 200
        yield process


@pytest.fixture(scope="session")
def admin_url(service: ServiceProcess) -> str:
    return str(service.admin_url)
