"""The whole audit: compares all partitions with their snapshots, and with every registered broker's replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from loadmanager.channel.audit.endpoints import Endpoint, Said, ask_all, endpoints_of, session
from loadmanager.channel.audit.partition import Finding, Outcome, PartitionAudit
from loadmanager.client.credentials import Credentials
from loadmanager.errors import NotFound, Unavailable
from statechannel.errors import ForeignCluster
from statechannel.law.partition import ClusterIdentity
from statechannel.law.snapshot import SNAPSHOTS
from statechannel.ports import Log, Member, TopicSpec


async def verify(
    log: Log,
    topic: str,
    cluster: str,
    members: Mapping[str, Member],
    tell: Callable[[Sequence[Finding]], None],
    partitions: int | None = None,
) -> list[Finding]:
    """All findings; `tell` gets those of each partition as they come.

    Brokers are asked with the credentials of the environment. Raises LogUnavailable, TopicMismatch, NotFound if there
    is no channel in this log, or ForeignCluster if it is another cluster's. (The log may create topics that do not
    exist.)
    """
    count = await log.open_topic(TopicSpec(topic, partitions))
    await log.open_topic(TopicSpec(topic + SNAPSHOTS, count, compacted=True))
    credentials = Credentials.of_environment()
    async with session(credentials) as opened:
        endpoints = endpoints_of(members, opened, credentials)
        answers = await ask_all(endpoints)
        findings: list[Finding] = []
        cluster_identity: ClusterIdentity | None = None
        for partition in range(count):
            said, silent = _of_partition(endpoints, answers, partition)
            audit = PartitionAudit(log, topic, partition, count, said, cluster_identity)
            found = [*await audit.run(), *silent]
            cluster_identity = audit.cluster_identity
            if partition == 0 and cluster_identity is None and all(f.outcome is Outcome.AGREES for f in found):
                raise NotFound(f"no cluster has begun in topic {topic!r} of this log: see --log and topic_prefix")
            if cluster_identity is not None and cluster_identity.cluster != cluster:
                raise ForeignCluster(
                    f"this log belongs to cluster {cluster_identity.cluster!r}, not {cluster!r}: see --cluster"
                )
            tell(found)
            findings += found
    return findings


def _of_partition(
    endpoints: Sequence[Endpoint], answers: Sequence[list[Said] | Unavailable], partition: int
) -> tuple[list[tuple[Endpoint, Said]], list[Finding]]:
    said: list[tuple[Endpoint, Said]] = []
    silent: list[Finding] = []
    for endpoint, answer in zip(endpoints, answers, strict=True):
        if isinstance(answer, Unavailable):
            silent.append(Finding(endpoint.broker, partition, None, Outcome.UNCHECKED, str(answer)))
            continue
        found = next((each for each in answer if each.partition == partition), None)
        if found is None:
            silent.append(Finding(endpoint.broker, partition, None, Outcome.DIFFERS, "it has no such partition"))
        else:
            said.append((endpoint, found))
    return said, silent
