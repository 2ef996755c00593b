"""A broker dies, or leaves: until every bundle has a live, serving owner again. Default settings.

Pulsar 4.0.7: SIGKILL 30-65 s (session 30 s) and 7 s (session 6 s), of the leader 49-97 s, SIGTERM 1.0 s.
"""

from __future__ import annotations

import signal
import time

from bench.cluster import BrokerProcess, await_true, cluster, create_namespace, topics_of_bundles
from bench.figures import emit, median
from bench.stations import carrier

BUNDLES = 256
BROKERS = 3
TIMES = 3


def run(kind: str) -> None:
    """All figures of this bench."""
    for what, how, whom, target_s in (
        ("SIGKILL of an owner", signal.SIGKILL, "follower", 4.0),
        ("SIGKILL of the leader", signal.SIGKILL, "leader", 4.0),
        ("SIGTERM of an owner", signal.SIGTERM, "follower", 0.5),
    ):
        outages: list[float] = []
        held: list[int] = []
        for _ in range(TIMES):
            outage_s, bundles = _once(kind, how, whom)
            outages.append(outage_s)
            held.append(bundles)
        emit(
            "failover", f"{what}, {kind}", median(outages), "s", target=f"≤ {target_s:g}", met=max(outages) <= target_s,
            worst=round(max(outages), 3), bundles=held, of=BUNDLES,
        )  # fmt: skip


def _once(kind: str, how: signal.Signals, whom: str) -> tuple[float, int]:
    with carrier(kind) as where, cluster(where, BROKERS) as brokers:
        create_namespace(brokers[0], "bench/failover", BUNDLES)
        boundaries = brokers[0].ask("GET", "/admin/v2/namespaces/bench/failover/bundles")[1]["boundaries"]
        topics = [f"persistent://{t}" for t in topics_of_bundles("bench/failover", boundaries)]
        owners = _owners(brokers[0], topics)
        leader = brokers[0].ask("GET", "/admin/v2/brokers/leaderBroker")[1]["brokerId"]
        victim = next(b for b in brokers if (b.name == leader) == (whom == "leader"))
        witness = next(b for b in brokers if b is not victim)
        begin = time.monotonic()
        victim.process.send_signal(how)
        await_true(lambda: victim.name not in _owners(witness, topics), 60, "every bundle has another owner")
        return time.monotonic() - begin, owners.count(victim.name)


def _owners(broker: BrokerProcess, topics: list[str]) -> list[str | None]:
    """The owner that a lookup names, by topic; the dead broker's name stands for no answer yet."""
    status, answer = broker.ask("POST", "/v1/lookup", {"topics": topics})
    assert status == 200, (status, answer)
    return [row.get("broker") for row in answer["answers"]]
