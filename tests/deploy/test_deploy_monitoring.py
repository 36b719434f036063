"""Prometheus accepts its files, each alert is documented, and every query names what exists."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.processes.proxies import find_tool
from tornado_idv.web.errors import ApiError

pytestmark = [pytest.mark.slow, pytest.mark.ci]

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
GROUPS = yaml.safe_load((PROMETHEUS / "rules.yml").read_text(encoding="utf-8"))["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
DASHBOARD = json.loads((GRAFANA / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SELECTOR = re.compile(r"([a-z_]+:[a-z0-9_:]+|idv_\w+|\bup\b)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)=~?"([^"]*)"')


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(
        [find_tool("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def metrics(admin_url: str) -> dict[str, dict[str, set[str]]]:
    """The names of all samples that the service exposes, with the values of their labels."""
    exposed: dict[str, dict[str, set[str]]] = {"up": {}}
    with urlopen(f"{admin_url}/metrics", timeout=10) as response:
        text = response.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = exposed.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return exposed


@pytest.mark.parametrize("name", ["prometheus/prometheus.yml", "compose/prometheus.yml"])
def test_scrape_configurations_pass_promtool(name: str, tmp_path: Path) -> None:
    """With the rules under the name that they have; compose mounts both from elsewhere."""
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    (tmp_path / "key").write_text("x")
    path = tmp_path / "prometheus.yml"
    path.write_text(text.replace("/run/secrets/monitoring.key", "key"))
    shutil.copy(PROMETHEUS / "rules.yml", tmp_path)
    promtool("check", "config", path)


def test_alerts_fire_when_they_should() -> None:
    path = Path(__file__).with_name("alerts_test.yml")
    promtool("test", "rules", path)
    tested = set(re.findall(r"alertname: (\w+)\n", path.read_text(encoding="utf-8")))
    assert tested == {rule["alert"] for rule in ALERTS}


def test_every_alert_has_a_section_in_the_documents() -> None:
    text = (ROOT / "docs" / "guide" / "monitoring.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (.+)$", text.partition("\n## Alerts\n")[2], re.MULTILINE)
    assert sections == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["annotations"]["runbook"] == f"docs/guide/monitoring.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("expr", [*(rule["expr"] for rule in RULES), *PANELS])
def test_every_query_names_metrics_and_labels_that_exist(
    metrics: dict[str, dict[str, set[str]]], expr: str
) -> None:
    values = {"code": {error.code for error in ApiError}, "result": {"found", "not_found"}}
    selectors = SELECTOR.findall(expr)
    assert selectors
    for name, matchers in selectors:
        assert name in metrics or name in RECORDED
        for label, pattern in MATCHER.findall(matchers):
            if label != "job":
                known = metrics[name][label] | values.get(label, set())
                assert {*pattern.split("|")} <= known


def test_dashboard_is_complete_and_provisioned() -> None:
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD))) <= variables
    provisioning = GRAFANA / "provisioning"
    dashboards = (provisioning / "dashboards" / "tornado-idv.yaml").read_text(encoding="utf-8")
    (provider,) = yaml.safe_load(dashboards)["providers"]
    compose = (ROOT / "deploy" / "compose" / "compose.yaml").read_text(encoding="utf-8")
    assert f":{provider['options']['path']}/tornado-idv.json:ro" in compose
    sources = (provisioning / "datasources" / "prometheus.yaml").read_text(encoding="utf-8")
    (source,) = yaml.safe_load(sources)["datasources"]
    assert source["url"] == "http://prometheus:9090"
