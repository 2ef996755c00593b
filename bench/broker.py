"""A broker joins a running cluster: seconds to ready, and resident memory. Pulsar 4.0.7: 6.1 s, 374-403 MiB."""

from __future__ import annotations

import psutil

from bench.backends import carrier
from bench.cluster import BrokerProcess, cluster, create_namespace
from bench.figures import emit, median

BUNDLES = 1_000
TIMES = 5


def run(kind: str) -> None:
    """All figures of this bench."""
    with carrier(kind) as where, cluster(where, 1) as brokers:
        create_namespace(brokers[0], "bench/broker", BUNDLES)
        ready: list[float] = []
        resident: list[float] = []
        for _ in range(TIMES):
            joining = BrokerProcess(where)
            try:
                ready.append(joining.await_ready())
                resident.append(psutil.Process(joining.process.pid).memory_info().rss / 2**20)
            finally:
                joining.end()
        ready_s, resident_mib = median(ready), max(resident)
        emit("broker", f"process start to ready, {kind}", ready_s, "s", target="≤ 1.5", met=ready_s <= 1.5)
        emit(
            "broker", f"resident, {BUNDLES} bundles, {kind}", resident_mib, "MiB", target="≤ 100",
            met=resident_mib <= 100,
        )  # fmt: skip
