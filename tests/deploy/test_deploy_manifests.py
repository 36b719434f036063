"""The files for Docker, Compose, Kubernetes, systemd and logrotate are valid, and fit together."""

import json
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.pages import ROOT, code_blocks, page
from support.processes.process import Invoke
from support.processes.proxies import find_tool, not_installed

pytestmark = [pytest.mark.slow, pytest.mark.ci]

DEPLOY = ROOT / "deploy"
TOOLS = ROOT / ".venv-tools" / "bin"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
UNIT = DEPLOY / "systemd" / "tornado-idv.service"
PARSE_COMPOSE = "import sys, compose_spec; compose_spec.PyCompose.from_json(sys.stdin.read())"


def run(*command: str | Path, text: str = "") -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line]


def test_dockerfile_passes_hadolint() -> None:
    assert run(find_tool("hadolint", TOOLS), DOCKERFILE) == ""


def test_image_runs_without_root_and_shell_on_a_pinned_base() -> None:
    found = instructions()
    bases = [value.split()[0] for name, value in found if name == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base) for base in bases)
    last = dict(found[max(i for i, (name, _) in enumerate(found) if name == "FROM") :])
    assert "RUN" not in last
    command = json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])
    assert command == ["env", "--block-signal=TERM", "tornado-idv", "serve"]


def test_build_context_is_what_the_image_is_built_from() -> None:
    copied = {
        name
        for instruction, value in instructions()
        if instruction == "COPY" and "--from" not in value
        for name in value.split()[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("name", ["compose.yaml", "replicas.yaml"])
def test_compose_files_are_valid_and_refer_to_what_exists(name: str) -> None:
    path = DEPLOY / "compose" / name
    record = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not [*TOOLS.parent.glob("lib/*/site-packages/compose_spec")]:
        pytest.skip(not_installed("compose-spec"))
    # Compose substitutes variables before it validates.
    text = re.sub(r"\$\{IDV_USER:[^}]+\}", "65532:65532", json.dumps(record))
    run(TOOLS / "python", "-c", PARSE_COMPOSE, text=text)
    for service in record["services"].values():
        assert {*service.get("secrets", ())} <= {*record["secrets"]}
        assert {*service.get("depends_on", ())} <= {*record["services"]}
        assert {*service.get("networks", ())} <= {*record.get("networks", ())}
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if not source.startswith(("./secrets/", "./data")):
                exists = (path.parent / source).exists()
                assert exists if "/" in source else source in record["volumes"]
        build = service.get("build")
        if build:
            file = path.parent / build["context"] / build["dockerfile"]
            assert file.resolve() == DOCKERFILE


REPLICAS: Any = yaml.safe_load((DEPLOY / "compose" / "replicas.yaml").read_text(encoding="utf-8"))


def test_nginx_of_the_replicas_has_their_addresses_and_is_trusted() -> None:
    site = (DEPLOY / "compose" / "nginx.conf").read_text(encoding="utf-8")
    addresses = {
        name: service["networks"]["idv"]["ipv4_address"]
        for name, service in REPLICAS["services"].items()
        if "ipv4_address" in str(service["networks"])
    }
    nginx = addresses.pop("nginx")
    config = yaml.safe_load((DEPLOY / "compose" / "replicas" / "config.yaml").read_text())
    assert config["server"]["trusted_proxies"] == [nginx]
    assert re.findall(r"^    server ([\d.]+):8080", site, re.MULTILINE) == [*addresses.values()]
    assert len(addresses) == 3


def test_nginx_of_the_replicas_is_the_other_site_without_tls(tmp_path: Path) -> None:
    text, other = (
        (DEPLOY / folder / name).read_text(encoding="utf-8")
        for folder, name in (("compose", "nginx.conf"), ("nginx", "tornado-idv.conf"))
    )
    ends = {"    # The service has its own limits": "\n}\n", "    keepalive 64;": "\nserver {"}
    for begin, end in ends.items():
        assert (
            text.partition(begin)[2].partition(end)[0]
            == (other.partition(begin)[2].partition(end)[0])
        )
    config = tmp_path / "nginx.conf"
    site = text.replace("listen 80", "listen 127.0.0.1:1")
    config.write_text(f"pid {tmp_path}/pid; events {{}} http {{ {site} }}")
    run(find_tool("nginx"), "-t", "-c", config, "-e", tmp_path / "error.log")


def test_script_writes_the_secrets_of_the_replicas(tmp_path: Path) -> None:
    """Also the statements of docs/tutorial/three-replicas.md, with the passwords in the DSNs."""
    find_tool("openssl")
    run("sh", "-c", f"umask 022; cd {tmp_path} && sh {DEPLOY}/compose/make-secrets.sh")
    secrets, user = tmp_path / "secrets", (tmp_path / ".env").read_text().strip()
    for each in (secrets, tmp_path / "data", *secrets.iterdir()):
        status = each.stat()
        assert stat.S_IMODE(status.st_mode) == (0o700 if each.is_dir() else 0o600)
        assert user == f"IDV_USER={status.st_uid}:{status.st_gid}"
    for name in ("replica-1", "commands"):
        assert REPLICAS["services"][name]["user"].startswith("${IDV_USER:")
    assert f"./data:{REPLICAS['services']['commands']['working_dir']}" in str(REPLICAS)
    written = {each.name: each.read_text() for each in secrets.iterdir()}
    assert {*written} == {*REPLICAS["secrets"], "database.sql"}
    sql = page("docs/tutorial/three-replicas.md").partition("<<END\n")[2].partition("END\n")[0]
    for role in ("admin", "service"):
        name, password = re.findall(r"//(\w+):(\w+)@postgres:5432/idv\n$", written[f"{role}.dsn"])[
            0
        ]
        assert name == f"idv_{role}"
        sql = sql.replace(f"${role}'", f"{password}'")
    assert written["database.sql"] == sql


def test_secrets_of_the_replicas_do_not_replace_an_environment_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("IDV_USER=0:0\n")
    said = run("sh", "-c", f"cd {tmp_path} && ! sh {DEPLOY}/compose/make-secrets.sh")
    assert said.startswith(".env exists already")
    assert [each.name for each in tmp_path.iterdir()] == [".env"]
    assert (tmp_path / ".env").read_text() == "IDV_USER=0:0\n"


def test_keys_of_a_first_start_are_private(tmp_path: Path) -> None:
    """In a shell with the usual umask, where Docker and kubectl print a line."""
    bash, _ = find_tool("bash"), find_tool("openssl")
    blocks = code_blocks(page("deploy/README.md"), "sh")
    starts = [each for each in blocks if re.search(r"> \S+\.(key|token)$", each, re.MULTILINE)]
    assert len(starts) == 3
    for number, commands in enumerate(starts):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(DEPLOY / "compose" / "make-secrets.sh", folder)
        (folder / "users.csv").touch()
        fakes = "docker() { echo done; }; kubectl() { echo done; }; umask 022"
        run(bash, "-euc", f"cd {folder}; {fakes}\n{commands}")
        written = [each for each in folder.rglob("*.*") if each.suffix in {".key", ".token"}]
        assert written
        for each in written:
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (each, each.parent)]
            assert modes[0] == 0o600 or modes[1] == 0o700


def test_image_is_built_from_locked_versions_alone() -> None:
    """What is built is built by the locked setuptools, and what is installed was locked or built.

    `deploy/docker/check-image.sh`, a valid script, builds it; pip takes the newest setuptools for
    each build that is isolated.
    """
    commands = [
        command
        for name, value in instructions()
        if name == "RUN"
        for command in value.split("&&")
        if re.search(r" pip .*\b(install|wheel)\b", command)
    ]
    tools, dependencies, ours, install = commands
    assert "--require-hashes --only-binary :all: --requirement build.lock" in tools
    assert "--require-hashes --only-binary :all: --no-binary python-ldap" in dependencies
    assert "--requirement requirements.lock" in dependencies
    for built in (dependencies, ours):
        assert re.search(r"\bpip wheel\b.*--no-build-isolation.*--wheel-dir /wheel\b", built)
    assert "--no-deps" in ours
    assert "--no-index --no-deps --no-compile /wheel/*.whl" in install
    run("sh", "-n", DEPLOY / "docker" / "check-image.sh")


def test_image_says_what_it_is() -> None:
    (labels,) = (shlex.split(value) for name, value in instructions() if name == "LABEL")
    prefix = "org.opencontainers.image."
    found = dict(each.removeprefix(prefix).split("=", 1) for each in labels)
    setup = page("setup.py")
    assert f'version="{found["version"]}"' in setup
    assert f'license="{found["licenses"]}"' in setup
    assert {*found} == {"title", "description", "licenses", "version", "revision"}


def test_configurations_are_right(invoke: Invoke) -> None:
    configs = [*DEPLOY.rglob("config.yaml")]
    assert len(configs) > 4
    for each in configs:
        done = invoke("check", "--config-only", "--config", each)
        assert done.exit_code == 0, f"{each}: {done.output}"


Manifests = dict[str, Any]
"""Resources by kind."""


def build(folder: Path) -> Manifests:
    text = run(find_tool("kubectl"), "kustomize", folder)
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.fixture(scope="module", params=["kubernetes", "kubernetes-replicas"])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return build(DEPLOY / request.param)


def test_manifests_pass_schemas_of_kubernetes(manifests: Manifests, tmp_path: Path) -> None:
    kinds = "ConfigMap Deployment HorizontalPodAutoscaler NetworkPolicy PodDisruptionBudget"
    assert {*manifests} == {*kinds.split(), "Service", "ServiceAccount"}
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(manifests.values()))
    passed = run(find_tool("kubernetes-validate", TOOLS), "--strict", path)
    assert passed.count(" passed ") == len(manifests)


def test_pods_are_restricted(manifests: Manifests) -> None:
    """As the Pod Security Standard of that name asks, and with a read-only root file system."""
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & {*pod}
    assert {kind for each in pod["volumes"] for kind in each} == {"name", "configMap", "secret"}


def test_manifests_fit_together(manifests: Manifests) -> None:
    spec = manifests["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"] == labels
    for kind, name in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert manifests[kind]["spec"][name] == {"matchLabels": labels}
    assert (
        manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        == (manifests["Deployment"]["metadata"]["name"])
    )
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    config = yaml.safe_load(manifests["ConfigMap"]["data"]["config.yaml"])
    assert config["server"]["watch_config"] is True
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": config["server"]["port"], "admin": config["admin"]["port"]}
    public = {"path": config["server"]["health_path"], "port": "http"}
    assert container["readinessProbe"]["httpGet"] == container["startupProbe"]["httpGet"] == public
    assert container["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": "admin"}
    drain = config["server"]["drain"]
    seconds = sum(int(drain[each].removesuffix("s")) for each in ("delay", "timeout"))
    assert pod["terminationGracePeriodSeconds"] > seconds
    (mounted,) = (each["configMap"] for each in pod["volumes"] if "configMap" in each)
    assert mounted["name"] == manifests["ConfigMap"]["metadata"]["name"]
    secrets = re.findall(r"\$\{file:(.*)/", manifests["ConfigMap"]["data"]["config.yaml"])
    assert {*secrets} <= {each["mountPath"] for each in container["volumeMounts"]}


def test_overlay_with_a_pod_monitor_scrapes_the_admin_port_with_the_key(
    manifests: Manifests, tmp_path: Path
) -> None:
    overlay = page("docs/guide/kubernetes.md").partition("<<'END'\n")[2].partition("END\n")[0]
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(overlay)
    config = "profile_sites: [https://own.example]"
    (tmp_path / "overlay" / "config.yaml").write_text(config)
    own = build(tmp_path / "overlay")
    assert {*own} == {*manifests, "PodMonitor"}
    assert own["ConfigMap"]["data"] == {"config.yaml": config}
    assert {each["metadata"]["namespace"] for each in own.values()} == {"identity"}
    monitor = own["PodMonitor"]
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    template = manifests["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert monitor["spec"]["selector"] == {"matchLabels": labels}
    assert labels[monitor["spec"]["jobLabel"]] == "tornado-idv"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = template["spec"]["containers"]
    assert endpoint["port"] in [each["name"] for each in container["ports"]]
    assert endpoint["path"] == "/metrics"
    secrets = [each["secret"] for each in template["spec"]["volumes"] if "secret" in each]
    key = endpoint["authorization"]["credentials"]
    assert key["name"] in [each["secretName"] for each in secrets]
    guide = (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert f"create secret generic {key['name']}" in guide
    assert f"--from-file={key['key']}" in guide


def values_of(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)", text, re.MULTILINE)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A copy of the unit with a program that exists."""
    text = UNIT.read_text(encoding="utf-8")
    program = values_of(text, "ExecStart")[0].split()[0]
    path = tmp_path / UNIT.name
    path.write_text(text.replace(program, f"{sys.prefix}/bin/tornado-idv"))
    return path


def test_unit_is_valid_and_hardened_and_has_one_capability_for_port_443(unit: Path) -> None:
    analyze = find_tool("systemd-analyze")
    assert run(analyze, "verify", "--man=no", unit) == ""
    report = run(analyze, "security", "--offline=true", "--no-pager", unit)
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", report)
    assert exposure is not None
    assert float(exposure[1]) <= 2.0
    folder = unit.with_name(f"{UNIT.name}.d")
    folder.mkdir()
    shutil.copy(UNIT.parent / "port-443.conf", folder)
    assert run(analyze, "verify", "--man=no", unit) == ""
    drop_in = (UNIT.parent / "port-443.conf").read_text(encoding="utf-8")
    sets = "(?:CapabilityBoundingSet|AmbientCapabilities)"
    assert values_of(drop_in, sets) == ["CAP_NET_BIND_SERVICE"] * 2
    assert values_of(drop_in, "PrivateUsers") == ["no"]


def test_socket_unit_is_valid_and_has_the_addresses_of_the_examples(unit: Path) -> None:
    sockets = shutil.copy(UNIT.with_suffix(".socket"), unit.parent)
    assert run(find_tool("systemd-analyze"), "verify", "--man=no", sockets) == ""
    path, port = values_of(Path(sockets).read_text(), "ListenStream")
    site = (DEPLOY / "nginx" / "tornado-idv.conf").read_text(encoding="utf-8")
    assert f"server unix:{path};" in site
    assert f"server {port};" in site
    # systemd would otherwise remove the folder, with the socket, when the service stops.
    (folder,) = values_of(unit.read_text(), "RuntimeDirectory")
    assert Path(path).parent == Path("/run") / folder
    assert values_of(unit.read_text(), "RuntimeDirectoryPreserve") == ["yes"]


@pytest.mark.parametrize("name", [UNIT.name, "notify-reload.conf"])
def test_reload_of_a_wrong_file_fails(name: str, tmp_path: Path, invoke: Invoke) -> None:
    """Before the signal, where the unit sends it: the service rejects the file, too.

    Debian 12 does not know the type of the drop-in (systemd 252), so it is not in the unit.
    """
    text = (UNIT.parent / name).read_text(encoding="utf-8")
    assert values_of(text, "Type")[0]
    check, *others = [each.split() for each in values_of(text, "ExecReload") if each]
    served = values_of(UNIT.read_text(), "ExecStart")[0].split()
    assert check == [served[0], "check", *served[2:]]
    assert others == ([["/bin/kill", "-HUP", "$MAINPID"]] if name == UNIT.name else [])
    config = tmp_path / "config.yaml"
    config.write_text("server: {prot: 8080}\n")
    assert invoke("check", "--config", config).exit_code == 1


def test_logrotate_accepts_its_file(tmp_path: Path) -> None:
    state = tmp_path / "state"
    said = run(
        find_tool("logrotate"), "--debug", "--state", state, DEPLOY / "logrotate" / "tornado-idv"
    )
    assert "error" not in said
    assert "Handling 1 logs" in said
    assert "/var/log/tornado-idv/*.log" in said
