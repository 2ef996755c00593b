"""A service's own chart that has ours as a part: the usual case, with the broker inside the service's image."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helm.rendering import RENDERED, ROOT, broker_of, documents, fits, helm, of_kind, rendered

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example beside our chart, with its dependency packed into it."""
    copy = tmp_path_factory.mktemp("helm")
    shutil.copytree(ROOT / "helm" / "loadmanager", copy / "loadmanager")
    shutil.copytree(ROOT / "helm" / "examples" / "orders-chart", copy / "examples" / "orders-chart")
    chart = copy / "examples" / "orders-chart"
    run = helm("dependency", "build", folder=chart)
    assert run.returncode == 0, run.stderr
    return chart


@pytest.fixture(scope="module")
def manifests(chart: Path) -> list[dict[str, Any]]:
    return documents(rendered(chart=chart))


def pod_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return of_kind(manifests, "StatefulSet")["spec"]["template"]


def test_chart_renders_what_was_looked_at(chart: Path):
    file, text = RENDERED / "orders-chart.yaml", rendered(chart=chart)
    if os.environ.get("WRITE"):
        file.write_text(text)
    assert text == file.read_text(), "if the difference is right: WRITE=1"


def test_chart_passes_lint(chart: Path):
    run = helm("lint", "--strict", ".", folder=chart)
    assert run.returncode == 0, run.stdout


def test_manifests_fit_the_schemas_of_kubernetes(manifests: list[dict[str, Any]]):
    assert fits(manifests) > 7


def test_our_values_are_checked_there_too(chart: Path):
    run = helm("template", "lm", ".", "--set", "loadmanager.replica=3", folder=chart)
    assert "'replica' not allowed" in run.stderr


def test_broker_reads_the_configuration_of_the_service(manifests: list[dict[str, Any]]):
    broker, pod = broker_of(manifests), pod_of(manifests)["spec"]
    path = next(each["value"] for each in broker["env"] if each["name"] == "ORDERS_CONFIG")
    mount = next(each for each in broker["volumeMounts"] if path.startswith(each["mountPath"] + "/"))
    volume = next(each for each in pod["volumes"] if each["name"] == mount["name"])
    assert Path(path).name in of_kind(manifests, "ConfigMap", volume["configMap"]["name"])["data"]


def test_service_of_the_chart_finds_the_brokers(manifests: list[dict[str, Any]]):
    service, labels = of_kind(manifests, "Service", "lm-orders")["spec"], pod_of(manifests)["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    ports = {each["name"] for each in broker_of(manifests)["ports"]}
    assert {each["targetPort"] for each in service["ports"]} <= ports


def test_pods_are_rolled_when_the_configuration_of_the_service_changes(chart: Path):
    sums = set[str]()
    for currency in ("EUR", "CHF"):
        manifests = documents(rendered("--set", f"global.orders.currency={currency}", chart=chart))
        sums.add(pod_of(manifests)["metadata"]["annotations"]["checksum/orders"])
    assert len(sums) == 2


def test_releases_do_not_share_names(chart: Path, manifests: list[dict[str, Any]]):
    other = documents(helm("template", "second", ".", "--kube-version", "1.37.0", folder=chart).stdout)
    names = [{(each["kind"], each["metadata"]["name"]) for each in some} for some in (manifests, other)]
    assert names[1]
    assert not names[0] & names[1]


@pytest.mark.parametrize("release", ["shop.v2", "2024", "payments-europe-west-production-orders-of-teams-green"])
def test_kubernetes_takes_the_names_of_any_release(chart: Path, release: str):
    manifests = documents(rendered(chart=chart, release=release))
    assert fits(manifests)
    for each in manifests:
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"])


def test_first_install_waits_for_no_configuration_that_it_brings(chart: Path, manifests: list[dict[str, Any]]):
    assert of_kind(manifests, "Job", "check")["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    alone = documents(rendered("--set-json=loadmanager.volumes=[]", chart=chart))
    assert "pre-install" in of_kind(alone, "Job", "check")["metadata"]["annotations"]["helm.sh/hook"]


def test_a_field_of_the_security_context_can_be_left_out_here_too(chart: Path):
    manifests = documents(rendered('--set-json=loadmanager.podSecurityContext={"runAsUser":null}', chart=chart))
    assert "runAsUser" not in pod_of(manifests)["spec"]["securityContext"]
    assert pod_of(manifests)["spec"]["securityContext"]["fsGroup"] == 10_001
