"""Bugs of snapshots, trimming and reloading, put in on purpose, as in `protocol_bugs.py`.

Each takes away one thing on which *snapshot + tail = full replay*, or "a replica never goes back", rests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from loadmanager.channel.owner import keeper
from loadmanager.channel.owner.keeper import Keeper
from statechannel.errors import BadSnapshot, CorruptRecord
from statechannel.law import codec, snapshot
from statechannel.law.partition import Lead, NamespaceState, PartitionState
from statechannel.law.snapshot import SnapshotsReader, _Seal
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Ownership
from statechannel.runtime.channel import Replica
from statechannel.runtime.replay import read_snapshots
from tests.simulation.protocol_bugs import Patch, bug
from tests.simulator.simulated_log import SimulatedLogServer

# --- the log


@bug
def the_channel_is_compacted(patch: Patch) -> None:
    """A replica folds the last record of each bundle only, as it would find them in a compacted topic."""
    apply_batch = Replica._apply_batch

    def apply_last(self: Any, batch: Any) -> None:
        last = {key: entry.offset for entry in batch for key in _keys(entry)}
        apply_batch(self, [entry for entry in batch if any(last[key] == entry.offset for key in _keys(entry))])

    patch.setattr(Replica, "_apply_batch", apply_last)


@bug
def the_log_is_trimmed_beyond_the_snapshots(patch: Patch) -> None:
    async def trim(self: Any) -> None:
        deps = self._deps
        if self.listed:
            await self._answer(deps.log.trim(deps.topic, self.partition, deps.table.next_offset(self.partition)))

    patch.setattr(Keeper, "_trim", trim)


@bug
def the_log_is_trimmed_before_the_list_is_committed(patch: Patch) -> None:
    """To the base of the plan, although the topic still lists older snapshots: who starts may choose one of them."""

    async def trim(self: Any) -> None:
        base, deps = self._plan().base, self._deps
        if base is not None:
            await self._answer(deps.log.trim(deps.topic, self.partition, base.next_offset))

    patch.setattr(Keeper, "_trim", trim)


@bug
def a_deposed_owner_is_not_fenced(patch: Patch) -> None:
    patch.setattr(SimulatedLogServer, "_check_writer", lambda self, writer_id, epoch: None)


@bug
def an_owner_does_not_read_what_is_there(patch: Patch) -> None:
    """It fences those before it, and goes on from the list that it remembers from an earlier term, or from none."""

    async def open_blindly(self: Any) -> None:
        self._writer = await self._answer(self._deps.log.exclusive(keeper.lease_of(self.partition)))

    patch.setattr(Keeper, "open", open_blindly)


# --- what a snapshot holds


@bug
def a_snapshot_forgets_the_epoch(patch: Patch) -> None:
    _snapshots_lose(patch, lambda state: msgspec.structs.replace(state, lead=Lead()))


@bug
def a_snapshot_forgets_the_incarnations(patch: Patch) -> None:
    _snapshots_lose(patch, lambda state: msgspec.structs.replace(state, incarnations=()))


@bug
def a_snapshot_forgets_the_genesis(patch: Patch) -> None:
    _snapshots_lose(patch, lambda state: msgspec.structs.replace(state, cluster_identity=None))


@bug
def a_snapshot_forgets_deleted_namespaces(patch: Patch) -> None:
    """With them their revisions: a `create` that was refused once would be accepted later."""
    _snapshots_lose(
        patch,
        lambda state: msgspec.structs.replace(state, namespaces=tuple(n for n in state.namespaces if len(n.entries))),
    )


@bug
def a_snapshot_forgets_hand_offs(patch: Patch) -> None:
    _entries_lose(patch, hand_off=None)


@bug
def a_snapshot_forgets_how_to_split(patch: Patch) -> None:
    _entries_lose(patch, cutting=None)


@bug
def a_snapshot_forgets_targets(patch: Patch) -> None:
    _entries_lose(patch, target=None)


@bug
def a_snapshot_forgets_moves(patch: Patch) -> None:
    _snapshots_lose(patch, lambda state: msgspec.structs.replace(state, arrived=()))


@bug
def a_snapshot_takes_revisions_for_tokens(patch: Patch) -> None:
    _each_entry(patch, lambda entry: msgspec.structs.replace(entry, token=entry.revision))


# --- the reader


@bug
def a_reader_mixes_chunks_of_two_snapshots(patch: Patch) -> None:
    """It takes the first intact chunk of each number, whosever it is."""

    def chunks(self: Any, snapshot_id: str) -> list[bytes]:
        info = next(s for s in self.index.snapshots if s.snapshot_id == snapshot_id)
        found: dict[int, bytes] = {}
        for mine in self._chunks.values():
            found = {**mine, **found}
        if any(number not in found for number in range(info.chunks)):
            raise BadSnapshot("chunks are missing")
        return [found[number] for number in range(info.chunks)]

    patch.setattr(SnapshotsReader, "chunks", chunks)
    patch.setattr(_Seal, "check", lambda _: None)


@bug
def a_replica_skips_what_was_trimmed(patch: Patch) -> None:
    async def reload(self: Any, trimmed: Any) -> None:
        for partition, begin in enumerate(await self.log.begins(self.topic)):
            if begin > self.table.next_offset(partition):
                self.table.skip(partition, begin - 1)

    patch.setattr(Replica, "_reload", reload)


@bug
def a_replica_goes_back_to_a_snapshot(patch: Patch) -> None:
    """Every few seconds it starts from the newest snapshot again, whatever it has applied."""

    async def follow(self: Any) -> None:
        while True:
            try:
                async with asyncio.timeout(4):
                    async for batch in self.log.tail(self.topic, _next_offsets(self.table)):
                        self._apply_batch(batch)
                        await asyncio.sleep(0)
            except TimeoutError:
                for partition in range(self.table.partitions):
                    reader = await read_snapshots(self.log, self.snapshots_topic, partition)
                    if reader.index is not None:
                        self.loaded[partition] = reader.index.newest
                        self.table._partitions[partition].next_offset = 0
                        self.table.restore(reader.state(reader.index.newest.snapshot_id))

    patch.setattr(Replica, "follow", follow)


@bug
def nobody_hears_of_a_reload(patch: Patch) -> None:
    """What happened where the replica fell behind is in its table, and the agent acts on changes alone."""
    patch.setattr(Replica, "announce_reload", lambda self, partition: self.progress.set())


# --- how they are put in


def _next_offsets(table: OwnershipTable) -> list[int]:
    return [table.next_offset(partition) for partition in range(table.partitions)]


def _keys(entry: Any) -> list[object]:
    """The bundles or the namespace that a record is about; what is about nothing has a key of its own."""
    try:
        record = codec.decode(entry.value)
    except CorruptRecord:
        return [entry.offset]
    return [subject.bundle for subject in record.subjects] or [record.namespace or entry.offset]


def _snapshots_lose(patch: Patch, lose: Callable[[PartitionState], PartitionState]) -> None:
    patch.setattr(keeper, "encode", lambda state, *args: snapshot.encode(lose(state), *args))


def _each_entry(patch: Patch, change: Callable[[Ownership], Ownership]) -> None:
    def changed(namespace: NamespaceState) -> NamespaceState:
        return msgspec.structs.replace(namespace, entries=tuple(change(entry) for entry in namespace.entries))

    _snapshots_lose(
        patch, lambda state: msgspec.structs.replace(state, namespaces=tuple(changed(n) for n in state.namespaces))
    )


def _entries_lose(patch: Patch, **lost: None) -> None:
    _each_entry(patch, lambda entry: msgspec.structs.replace(entry, **lost))
