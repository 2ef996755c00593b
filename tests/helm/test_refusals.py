"""Values that cannot work are refused with a sentence, by the schema or by the templates."""

from __future__ import annotations

import re

import pytest

from tests.helm.rendering import CHART, template

pytestmark = [pytest.mark.release, pytest.mark.go, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm")]

PRODUCTION = ("-f", "examples/production.yaml")
SIDECAR = ("-f", "examples/sidecar.yaml")
STRIMZI = ("-f", "examples/strimzi.yaml")
REFUSED = {
    "nothing is given": ((), "log.address"),
    "a Kafka beside its own": (("--set", "dev.enabled=true,log.address=kafka://k:9092"), "leave log.address"),
    "no ZooKeeper": ((*PRODUCTION, "--set", "coordination.address=z:2181"), "coordination.address"),
    "no identity on ZooKeeper": ((*PRODUCTION, "--set", "coordination.secret="), "coordination.secret"),
    "no TLS": ((*PRODUCTION, "--set", "tls.certManager.enabled=false"), "give tls.secret"),
    "two certificates": ((*PRODUCTION, "--set", "tls.secret=x"), "exclude each other"),
    "an issuer without a name": ((*PRODUCTION, "--set", "tls.certManager.issuer.name="), "name the issuer"),
    "nobody asks": ((*PRODUCTION, "--set", "tokens.issuer="), "anyone may do everything"),
    "no superuser": ((*PRODUCTION, "--set", "tokens.superusers=null"), "at least one principal"),
    "two sources of keys": ((*PRODUCTION, "--set", "tokens.keys=https://k,tokens.keysSecret=x"), "keys come from one"),
    "probes at a taken port": (
        (*PRODUCTION, "--set", "tls.clientCaSecret=ca,tls.clientRequired=true,probes.port=8080"),
        "probes.port",
    ),
    "certificates of nobody": ((*PRODUCTION, "--set", "tls.clientRequired=true"), "clientCaSecret"),
    "replication 1": ((*PRODUCTION, "--set", "settings.replication=1"), "settings.replication below 3"),
    "one broker": ((*PRODUCTION, "--set", "replicas=1"), "at least 2"),
    "evictions of all": ((*PRODUCTION, "--set", "replicas=2,maxUnavailable=2"), "must be below the number"),
    "no time to drain": ((*PRODUCTION, "--set", "drain.timeoutSeconds=150"), "would be killed"),
    "fewer than the least": (
        (*PRODUCTION, "--set", "autoscaling.enabled=true,autoscaling.maxReplicas=2"), "must not be"),
    "scaled by nothing": ((*PRODUCTION, "--set", "autoscaling.enabled=true,autoscaling.cpuPercent=0"), "cpuPercent or"),
    "an ingress without a name": ((*PRODUCTION, "--set", "ingress.host="), "ingress.host"),
    "an open ingress": ((*PRODUCTION, "--set", "ingress.tlsSecret="), "ingress.tlsSecret"),
    "a route to nowhere": ((*PRODUCTION, "--set", "gateway.enabled=true"), "name the Gateway"),
    "a lake without a volume": ((*PRODUCTION, "--set", "history.enabled=true"), "history.claim"),
    "a lake beside its volume": (
        (*PRODUCTION, "--set", "history.enabled=true,history.claim=c,history.lake=/other"), "below it"),
    "a sidecar of nothing": ((*SIDECAR, "--set", "sidecar.containers=null"), "nothing would attach"),
    "containers without a sidecar": ((*SIDECAR, "--set", "sidecar.enabled=false"), "no broker beside them"),
    "a sidecar with a host": ((*SIDECAR, "--set", "host=a:b"), "exclude each other"),
    "a sidecar on one port": ((*SIDECAR, "--set", "port=7070"), "must differ"),
    "a port of nobody": ((*SIDECAR, "--set", "servicePorts[0].name=grpc"), "is called grpc"),
    "a container without an image": ((*SIDECAR, "--set", "sidecar.containers[0].image=null"), "image"),
    "two Kafkas": (("-f", "examples/try.yaml", "--set", "strimzi.enabled=true"), "not Strimzi's"),
    "a user of no Kafka": ((*STRIMZI, "--set", "strimzi.cluster="), "strimzi.cluster"),
    "two users of Kafka": ((*STRIMZI, "--set", "log.secret=kafka"), "exclude each other"),
    "an unknown value": ((*PRODUCTION, "--set", "replica=3"), "'replica' not allowed"),
    "an unknown setting": ((*PRODUCTION, "--set", "settings.proof_validity=3"), "'proof_validity' not allowed"),
    "a setting that the chart sets": ((*PRODUCTION, "--set", "settings.log=kafka://k"), "'log' not allowed"),
    "a setting out of bounds": ((*PRODUCTION, "--set", "settings.balancing_budget=5"), "balancing_budget"),
    "a text for a number": ((*PRODUCTION, "--set-string", "replicas=many"), "replicas"),
    "a port with dots": ((*PRODUCTION, "--set-string", "servicePorts[0].name=grpc.1"), "servicePorts/0/name"),
    "a port without a letter": ((*PRODUCTION, "--set-string", "servicePorts[0].name=9000"), "servicePorts/0/name"),
    "a container with dots": ((*SIDECAR, "--set", "sidecar.containers[0].name=a.b"), "sidecar/containers/0/name"),
    "a family of nobody": ((*PRODUCTION, "--set", "service.ipFamilies={IPv5}"), "ipFamilies"),
    "a list for a text": ((*PRODUCTION, "--set", "podAnnotations.a={b}"), "podAnnotations/a"),
    "no schedule": ((*PRODUCTION, "--set", "history.nightly.schedule=daily"), "schedule"),
    "an old Kubernetes": (("-f", "examples/try.yaml", "--kube-version", "1.28.0"), "kubeVersion"),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_values_that_cannot_work_are_refused_with_a_sentence(why: str):
    arguments, told = REFUSED[why]
    run = template(*arguments)
    assert run.returncode != 0
    assert told in run.stderr


def test_every_refusal_of_the_templates_is_tried():
    written = re.findall(r'fail "([^"]+)"|printf "([^"]+)"', (CHART / "templates/_helpers.tpl").read_text())
    sentences = [one or other for one, other in written if len(one or other) > 30]
    tried = "\n".join(template(*arguments).stderr for arguments, _ in REFUSED.values())
    plain = [re.split(r"%d|%s", sentence)[0] for sentence in sentences]
    assert len(plain) > 15
    assert not [sentence for sentence in plain if sentence not in tried]
