"""Turns a node's knowledge of the channel into what is shown. Reads only; decides nothing but the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite

import msgspec

from loadmanager.broker.node import Node
from loadmanager.channel.log_status import Outlook
from loadmanager.channel.owner.service import owner_of
from loadmanager_api.presenting import leader_of
from loadmanager_api.schemas import AgreementShown, ChannelShown, PartitionShown, SkippedShown, SnapshotShown
from statechannel.law.agreement import Agreement
from statechannel.law.snapshot import SnapshotInfo

Digested = Sequence[tuple[int, str]]
"""By partition, the next offset and the digest of one cut of it."""


def channel_shown(node: Node, outlook: Outlook, digested: Digested | None) -> ChannelShown:
    """The replica's state, and what is known of the log."""
    channel, table = node.channel, node.channel.table
    counts, cluster_identity, leader = channel.counts, table.cluster_identity, leader_of(node)
    return ChannelShown(
        cluster=node.settings.cluster,
        identity=cluster_identity.identity if cluster_identity else None,
        generation=cluster_identity.generation if cluster_identity else None,
        broker=str(node.current.me),
        leader=str(leader) if leader else None,
        connection=node.world.coordination.connection.value,
        safe_mode=node.membership.safe_mode(node.world.clock_s()),
        write_version=channel.write_version,
        publishes_in_flight=channel.in_flight,
        accepted=counts["accepted"],
        append_failures=counts["append_failed"],
        refused=refusals(counts),
        skipped=counts["skipped"],
        skipped_entries=[
            SkippedShown(partition=s.partition, offset=s.offset, detail=s.detail) for s in channel.skipped
        ],
        bundles={state.value: count for state, count in table.count_by_state().items()},
        namespaces=len(table.namespaces()),
        last_error=channel.last_error,
        stopped_by=str(channel.stopped_by) if channel.stopped_by else None,
        reloads=counts["reloads"],
        readers=sorted(node.views.readers),
        log_problem=outlook.problem or None,
        agreement=_agreement_shown(table.agreed(0).agreement),
        agreement_following=_agreement_shown(
            next((each for p in range(table.partitions) if (each := table.agreed(p).following) is not None), None)
        ),
        partitions=[
            _partition_shown(node, p, outlook, digested[p] if digested is not None else None)
            for p in range(table.partitions)
        ],
    )


def _agreement_shown(agreement: Agreement | None) -> AgreementShown | None:
    return None if agreement is None else AgreementShown.model_validate(msgspec.to_builtins(agreement))


def refusals(counts: Mapping[str, int]) -> dict[str, int]:
    """Refused records by reason."""
    return {key.removeprefix("refused "): n for key, n in sorted(counts.items()) if key.startswith("refused ")}


def _partition_shown(node: Node, partition: int, outlook: Outlook, digested: tuple[int, str] | None) -> PartitionShown:
    table = node.channel.table
    lead = table.lead(partition)
    next_offset, digest = digested or (table.next_offset(partition), None)
    owner = owner_of(node.world.coordination, node.membership, partition)
    snapshots = outlook.snapshots(partition)
    end = outlook.ends[partition] if outlook.ends is not None else None
    return PartitionShown(
        partition=partition,
        next_offset=next_offset,
        epoch=lead.epoch,
        leader=str(lead.leader) if lead.leader else None,
        digest=digest,
        begin=outlook.begins[partition] if outlook.begins is not None else None,
        end=end,
        lag=max(0, end - next_offset) if end is not None else None,
        owner=str(owner) if owner is not None else None,
        snapshots=None if snapshots is None else [_snapshot_shown(info) for info in reversed(snapshots)],
        since_snapshot=next_offset - snapshots[-1].next_offset if snapshots else None,
        proof_left_s=_proof_left_s(node, partition),
    )


def _proof_left_s(node: Node, partition: int) -> float | None:
    left_s = node.serving.until_s()[partition] - node.proof_clock.now_s() if node.serving is not None else -inf
    return round(left_s, 3) if isfinite(left_s) else None


def _snapshot_shown(info: SnapshotInfo) -> SnapshotShown:
    return SnapshotShown(
        snapshot_id=info.snapshot_id,
        next_offset=info.next_offset,
        at_ms=info.at_ms,
        bundles=info.bundles,
        size_bytes=info.size_bytes,
        chunks=info.chunks,
    )
