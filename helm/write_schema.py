"""Writes loadmanager/values.schema.json: `python helm/write_schema.py`. The settings in it are those of the brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadmanager.settings import Settings

FILE = Path(__file__).parent / "loadmanager" / "values.schema.json"
OWN = {
    **dict.fromkeys(("cluster", "failure_domain"), "the value `cluster`, `zoneLabel`"),
    **dict.fromkeys(("log", "coordination", "kafka", "zookeeper"), "the values `log` and `coordination`"),
    **dict.fromkeys(("advertised", "http_hosts"), "the chart"),
    **dict.fromkeys(("tls_certificate", "tls_key", "tls_client_ca", "tls_client_required"), "the value `tls`"),
    "http_probe_port": "the value `probes.port`",
    **dict.fromkeys(("token_keys", "token_issuer", "token_audience", "superusers"), "the value `tokens`"),
    **dict.fromkeys(("insecure", "drain_timeout_s", "history_dir", "log_format"), "the chart"),
}
"""Settings that are not among `settings`, and what sets them."""

TEXT = {"type": "string"}
YES_NO = {"type": "boolean"}
MAP = {"type": "object"}
LIST = {"type": "array"}
SCALAR = {"type": ["string", "number", "boolean", "null"]}
TEXTS = {"type": "object", "additionalProperties": SCALAR}
"""Labels, annotations and the like: texts in the end, however they are written."""
SECONDS = {"type": "integer", "minimum": 1, "maximum": 3_600}
PORT = {"type": "integer", "minimum": 1, "maximum": 65_535}
PULL = {"enum": ["Always", "IfNotPresent", "Never"]}
SPREAD = {"enum": ["DoNotSchedule", "ScheduleAnyway"]}
LABEL = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", "maxLength": 63}
NAME = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", "maxLength": 253}
CRON = {"type": "string", "pattern": r"^(@\w+|\S+ \S+ \S+ \S+ \S+)$"}
SIZE = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([kMGTP]i?)?$"}
JVM_SIZE = {"type": "string", "pattern": "^[0-9]+[kmgt]$"}
DURATION = {"type": "string", "pattern": "^([0-9]+(h|m|s))+$"}


def thing(**properties: dict[str, Any]) -> dict[str, Any]:
    """An object with these properties and no others."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def whole(least: int, most: int = 10_000) -> dict[str, Any]:
    """A whole number."""
    return {"type": "integer", "minimum": least, "maximum": most}


def items(each: dict[str, Any]) -> dict[str, Any]:
    """A list of these, each once."""
    return {"type": "array", "items": each, "uniqueItems": True}


def image(**more: dict[str, Any]) -> dict[str, Any]:
    """An image by tag or digest."""
    digest = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
    return thing(repository={"type": "string", "minLength": 1}, tag=TEXT, digest=digest, pullPolicy=PULL, **more)


def probe() -> dict[str, Any]:
    """What is set of a probe; the chart knows the rest."""
    names = ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold")
    return thing(**dict.fromkeys(names, whole(0)))


def settings() -> dict[str, Any]:
    """The brokers' settings, by their names, types and bounds."""
    known = Settings.model_json_schema()["properties"]
    assert known.keys() >= OWN.keys(), OWN.keys() - known.keys()
    kept = ("type", "anyOf", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "description")
    return thing(
        **{
            name: {key: value for key, value in setting.items() if key in kept}
            for name, setting in known.items()
            if name not in OWN
        }
    )


def schema() -> dict[str, Any]:
    """All values."""
    port_name = {"type": "string", "pattern": "^([0-9]-?)*[a-z](-?[a-z0-9])*$", "maxLength": 15}
    port = {**thing(name=port_name, port=PORT), "required": ["name", "port"]}
    container = {"type": "object", "required": ["name", "image"], "properties": {"name": LABEL, "image": TEXT}}
    variable = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "value": SCALAR}}
    objects = {"type": "array", "items": MAP}
    kafka_names = items({"type": "string", "minLength": 1})
    resources = thing(requests=MAP, limits=MAP, claims=LIST)
    kafka_or_zookeeper = thing(image={"type": "string", "minLength": 1}, storage=SIZE)
    whole_schema = thing(
        cluster=TEXT,
        replicas=whole(1, 1_000),
        image=image(pullSecrets=items(NAME)),
        host={"type": "string", "pattern": r"^([\w.]+:\w+)?$"},
        sidecar=thing(enabled=YES_NO, containers={**LIST, "items": container}, port=PORT),
        urls={"type": "object", "additionalProperties": TEXT},
        servicePorts=items(port),
        log=thing(address=TEXT, secret=NAME),
        strimzi=thing(enabled=YES_NO, cluster=NAME, topics=YES_NO, groups=kafka_names, groupTopics=kafka_names),
        coordination=thing(address=TEXT, secret=NAME),
        settings=settings(),
        insecure=YES_NO,
        tls=thing(
            secret=NAME,
            clientCaSecret=NAME,
            clientRequired=YES_NO,
            certManager=thing(
                enabled=YES_NO,
                issuer=thing(kind={"enum": ["Issuer", "ClusterIssuer"]}, name=TEXT, group=TEXT),
                duration=DURATION,
                renewBefore=DURATION,
            ),
        ),
        tokens=thing(
            issuer=TEXT,
            keys={"type": "string", "pattern": "^(https://.*)?$"},
            keysSecret=NAME,
            audience={"type": "string", "minLength": 1},
            superusers=items({"type": "string", "minLength": 1, "pattern": "^[^,]+$"}),
        ),
        port=PORT,
        listen=TEXT,
        clusterDomain=NAME,
        service=thing(
            type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
            annotations=TEXTS,
            ipFamilyPolicy={"enum": ["", "SingleStack", "PreferDualStack", "RequireDualStack"]},
            ipFamilies=items({"enum": ["IPv4", "IPv6"]}),
        ),
        drain=thing(timeoutSeconds=SECONDS),
        terminationGracePeriodSeconds=SECONDS,
        maxUnavailable=whole(1),
        probes=thing(port=PORT, startup=probe(), readiness=probe(), liveness=probe()),
        resources=resources,
        zoneLabel=TEXT,
        spread=thing(zones=SPREAD, nodes=SPREAD),
        **dict.fromkeys(("nodeSelector", "podAnnotations", "podAnnotationTemplates", "podLabels"), TEXTS),
        **dict.fromkeys(("affinity", "podSecurityContext"), MAP),
        **dict.fromkeys(("tolerations", "volumes", "volumeMounts"), objects),
        env={**LIST, "items": variable},
        containers={**LIST, "items": container},
        priorityClassName=TEXT,
        serviceAccount=thing(create=YES_NO, name=NAME, annotations=TEXTS),
        autoscaling=thing(
            enabled=YES_NO,
            minReplicas=whole(1, 1_000),
            maxReplicas=whole(1, 1_000),
            cpuPercent=whole(0, 1_000),
            bundles=whole(0, 1_000_000),
            stabilizationSeconds=whole(0, 3_600),
        ),
        networkPolicy={**thing(enabled=YES_NO), "properties": {"enabled": YES_NO, "from": LIST}},
        ingress=thing(enabled=YES_NO, className=TEXT, annotations=TEXTS, host=TEXT, tlsSecret=NAME),
        gateway=thing(enabled=YES_NO, parentRefs=LIST, hostnames=items({"type": "string", "minLength": 1})),
        metrics=thing(
            serviceMonitor=thing(enabled=YES_NO, interval=DURATION, labels=TEXTS, tokenSecret=NAME, caSecret=NAME),
            prometheusRule=thing(enabled=YES_NO, labels=TEXTS),
            dashboard=thing(enabled=YES_NO, labels=TEXTS),
        ),
        check=thing(enabled=YES_NO, annotations=TEXTS),
        test=thing(tokenSecret=NAME, caSecret=NAME),
        history=thing(
            enabled=YES_NO,
            image=image(),
            lake={"type": "string", "minLength": 1},
            claim=NAME,
            conf=TEXTS,
            secret=NAME,
            resources=resources,
            memory=JVM_SIZE,
            nightly=thing(enabled=YES_NO, schedule=CRON),
            replay=thing(
                enabled=YES_NO,
                schedule=CRON,
                executors=whole(1),
                cores=whole(1, 1_000),
                memory=JVM_SIZE,
                memoryOverhead=JVM_SIZE,
            ),
        ),
        dev=thing(enabled=YES_NO, kafka=kafka_or_zookeeper, zookeeper=kafka_or_zookeeper),
        nameOverride={**NAME, "maxLength": 63},
        fullnameOverride=NAME,
        **{"global": {**MAP, "properties": {"imagePullSecrets": LIST}}},  # Helm's own, and of other charts
    )
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart", **whole_schema}


if __name__ == "__main__":
    FILE.write_text(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")
