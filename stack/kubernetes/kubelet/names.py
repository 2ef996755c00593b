"""Which names lead where: what the cluster's DNS would say, as lines of a hosts file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Object = dict[str, Any]
DOMAIN = "cluster.local"


def is_ready(pod: Object) -> bool:
    """Whether a Service leads to it."""
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def selected(service: Object, pods: Iterable[Object]) -> Iterator[Object]:
    """The pods of a Service that have an address and have not ended."""
    selector = service["spec"].get("selector") or {}
    for pod in pods:
        here = pod["metadata"]["namespace"] == service["metadata"]["namespace"]
        lives = pod.get("status", {}).get("phase") in ("Pending", "Running") and pod["status"].get("podIP")
        if selector and here and lives and selector.items() <= pod["metadata"].get("labels", {}).items():
            yield pod


def hosts(here: str, services: Iterable[Object], pods: Iterable[Object]) -> str:
    """The file of pods in the namespace `here`, in which Services have short names too.

    Services with an address lead to it; those without lead to their pods, which have names of their own.
    """
    pods = list(pods)
    lines = ["127.0.0.1 localhost"]
    for service in services:
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        names = " ".join(_spelled(f"{name}.{namespace}") + ([name] if namespace == here else []))
        address = service["spec"].get("clusterIP", "None")
        if address != "None":
            lines.append(f"{address} {names}")
            continue
        for pod in selected(service, pods):
            if not (is_ready(pod) or service["spec"].get("publishNotReadyAddresses")):
                continue
            own = ""
            if pod["spec"].get("subdomain") == name and pod["spec"].get("hostname"):
                own = " ".join(_spelled(f"{pod['spec']['hostname']}.{name}.{namespace}"))
            lines.append(f"{pod['status']['podIP']} {own} {names}")
    return "\n".join(lines) + "\n"


def _spelled(name: str) -> list[str]:
    return [f"{name}.svc.{DOMAIN}", f"{name}.svc", name]
