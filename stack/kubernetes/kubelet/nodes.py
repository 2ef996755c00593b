"""Nodes in the API server: registered, ready, and their leases renewed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp

from stack.kubernetes.kubelet.api import NOT_FOUND, STRATEGIC, Api, Refused
from stack.kubernetes.kubelet.container import now
from stack.kubernetes.programs import KUBERNETES

log = logging.getLogger(__name__)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
LEASE_S = 40
RENEW_S = 5.0
CAPACITY = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "110"}


async def register(api: Api, nodes: Mapping[str, str], address: str, port: int) -> None:
    """Nodes by name, each with its zone. Raises Refused, OSError, aiohttp.ClientError."""
    for name, zone in nodes.items():
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": zone,
        }
        node = {"metadata": {"name": name, "labels": labels}, "status": _status(name, address, port)}
        await api.ask("POST", "/api/v1/nodes", node)
        await api.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": _status(name, address, port)}, STRATEGIC)
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": _precise()}
        await _lease(api, {"metadata": {"name": name}, "spec": spec})


async def _lease(api: Api, lease: dict[str, Any]) -> None:
    while True:
        try:
            await api.ask("POST", LEASES, lease)
        except Refused as refused:
            if refused.status != NOT_FOUND:
                raise
            await asyncio.sleep(0.1)  # an API server that has just started has not made its namespaces yet
        else:
            return


async def renew(api: Api, nodes: Mapping[str, str]) -> None:
    """Renew the leases, until cancelled."""
    while True:
        await asyncio.sleep(RENEW_S)
        for name in nodes:
            try:
                await api.ask("PATCH", f"{LEASES}/{name}", {"spec": {"renewTime": _precise()}}, STRATEGIC)
            except (Refused, OSError, aiohttp.ClientError) as error:
                log.warning("lease of %s: %s", name, error)


def _precise() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _status(name: str, address: str, port: int) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "pods are processes here"}
    return {
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
        "conditions": [ready | {"lastHeartbeatTime": now(), "lastTransitionTime": now()}],
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            **dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"), ""),
            "containerRuntimeVersion": "processes://1",
            "kubeletVersion": KUBERNETES,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }
