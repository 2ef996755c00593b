"""Splits and merges of a service that does nothing: how long a range is not served, next to the gap of a transfer.

The gaps run from the end of service of what is gone to the beginning of service of what takes its place, on the one
monotonic clock of the machine; the transfers are those of the same cluster, in turns with the splits and merges.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.backends import carrier
from bench.cluster import BrokerProcess, cluster, create_namespace, topics_of_bundles
from bench.figures import emit, median, percentile
from statechannel.law.bundle import Bundle, tile

ROUNDS = 100
NAMESPACE = "bench/splits"


def run(kind: str) -> None:
    """All figures of this bench."""
    with tempfile.TemporaryDirectory(prefix="bench-split-") as directory, carrier(kind) as where:
        served = Path(directory) / "served"
        os.environ["BENCH_SERVED"] = str(served)
        with cluster(where, 3, host="bench.host:make") as brokers:
            create_namespace(brokers[0], NAMESPACE, 16)
            boundaries = brokers[0].ask("GET", f"/admin/v2/namespaces/{NAMESPACE}/bundles")[1]["boundaries"]
            topics = [f"persistent://{topic}" for topic in topics_of_bundles(NAMESPACE, boundaries)]
            brokers[0].ask("POST", "/v1/lookup", {"topics": topics})
            bundles = tile(NAMESPACE, [int(boundary, 16) for boundary in boundaries])
            took = [_round(brokers, bundles[turn % 16], turn) for turn in range(ROUNDS)]
        gaps = _gaps_ms(served)
    splits_ms, moves_ms = median(gaps["reshaped"]), median(gaps["moved"])
    emit(
        "split", f"gap of a split or merge p50, {kind}", splits_ms, "ms", floor=moves_ms, target="as a transfer's",
        met=splits_ms <= 1.25 * moves_ms, p99_ms=round(percentile(gaps["reshaped"], 99), 2),
        transfer_p99_ms=round(percentile(gaps["moved"], 99), 2),
    )  # fmt: skip
    for index, what in enumerate(("split in four", "merge of four", "transfer")):
        calls = [each[index] * 1e3 for each in took]
        emit("split", f"REST call, {what}, p50, {kind}", median(calls), "ms", p99_ms=round(percentile(calls, 99), 2))


def _round(brokers: list[BrokerProcess], bundle: Bundle, turn: int) -> tuple[float, float, float]:
    """Seconds of a split, a merge that undoes it, and a transfer."""
    split_s, answer = _timed(brokers[0], f"/v1/bundles/{bundle}/split", {"parts": 4})
    merge_s, _ = _timed(brokers[0], "/v1/bundles/merge", {"bundles": answer["children"]})
    path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/unload?destinationBroker="
    for broker in (brokers[(turn + step) % 3] for step in range(3)):
        begin = time.perf_counter()
        status, _ = brokers[0].ask("PUT", path + broker.name)
        if status == 204:
            return split_s, merge_s, time.perf_counter() - begin
    raise RuntimeError(f"{bundle} was not moved")


def _timed(broker: BrokerProcess, path: str, body: object) -> tuple[float, dict[str, list[str]]]:
    begin = time.perf_counter()
    status, answer = broker.ask("POST", path, body)
    assert status == 200, (status, answer)
    return time.perf_counter() - begin, answer


def _gaps_ms(served: Path) -> dict[str, list[float]]:
    """For each bundle that begins to be served, by how it was created: since when no broker had served that range."""
    ended: dict[Bundle, int] = {}
    gaps: dict[str, list[float]] = {"moved": [], "reshaped": []}
    for line in sorted(served.read_text().splitlines(), key=lambda line: int(line.split()[0])):
        at_ns, sign, name = line.split()
        bundle = Bundle.parse(name)
        if sign == "-":
            ended = {b: ns for b, ns in ended.items() if not _overlap(b, bundle)} | {bundle: int(at_ns)}
        elif before := [ns for b, ns in ended.items() if _overlap(b, bundle)]:
            how = "moved" if bundle in ended else "reshaped"
            gaps[how].append((int(at_ns) - min(before)) / 1e6)
            if how == "moved":
                del ended[bundle]
    return gaps


def _overlap(one: Bundle, other: Bundle) -> bool:
    return one.namespace == other.namespace and one.lo < other.hi and other.lo < one.hi
