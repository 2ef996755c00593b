"""An export of a log: the replayed state of every partition. Pure; the file format is in `export_file.py`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadmanager.channel.migration.documents import DocumentEntries
from loadmanager.errors import Conflict
from statechannel.law.agreement import Agreement
from statechannel.law.imported import is_unfinished
from statechannel.law.partition import ClusterIdentity, NamespaceState, PartitionState
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Ownership


class Export(msgspec.Struct, frozen=True):
    """A channel, each partition as of one offset. A namespace is in one partition, so it is consistent."""

    cluster_identity: ClusterIdentity
    taken_ms: int
    """When it was taken, on that machine's wall clock; for people only."""
    address: str
    """The log's address; for people only."""
    states: tuple[PartitionState, ...]
    documents: DocumentEntries = msgspec.field(default_factory=dict)
    """Policies, settings and plans, as in their topics."""

    def namespaces(self) -> Iterator[NamespaceState]:
        """The existing namespaces."""
        for state in self.states:
            yield from (namespace for namespace in state.namespaces if namespace.entries)

    def entries(self) -> Iterator[Ownership]:
        """The entries of all bundles."""
        for namespace in self.namespaces():
            yield from namespace.entries

    def incarnations(self) -> dict[str, int]:
        """The highest incarnation of each broker name in the log."""
        highest: dict[str, int] = {}
        for state in self.states:
            for name, number in state.incarnations:
                highest[name] = max(number, highest.get(name, 0))
        return highest

    @property
    def agreement(self) -> Agreement | None:
        """The log's agreement, or the one that was about to replace it; None if there was none."""
        agreed = self.states[0].agreed
        return agreed.following or agreed.agreement

    @property
    def moved_to(self) -> str | None:
        """Where the channel goes on, if any partition of this log was closed."""
        return next((state.retired for state in self.states if state.retired is not None), None)

    @property
    def next_generation(self) -> int:
        """The lowest unused generation: if this log was moved, the next log has used its generation for tokens too."""
        return self.cluster_identity.generation + (1 if self.moved_to is None else 2)

    @property
    def bundles(self) -> int:
        return sum(state.bundles for state in self.states)

    def owners(self) -> dict[str, int]:
        """How many bundles each broker's name holds."""
        counts: dict[str, int] = {}
        for entry in self.entries():
            if entry.holder is not None:
                counts[entry.holder.name] = counts.get(entry.holder.name, 0) + 1
        return dict(sorted(counts.items()))


def nothing(cluster: str, generation: int) -> Export:
    """An export without namespaces and documents, for a log of this generation, where there is no backup."""
    identity = ClusterIdentity(cluster, "", generation - 1)
    table = OwnershipTable(1)
    table.cluster_identity = identity
    return Export(identity, 0, "", (table.cut(0),))


def export_of(table: OwnershipTable, documents: DocumentEntries, address: str, taken_ms: int) -> Export:
    """An export of all that was replayed. Raises Conflict if the log belongs to no cluster, or is incomplete."""
    if table.cluster_identity is None:
        raise Conflict(f"{address} belongs to no cluster, so there is nothing to export: correct --log")
    if is_unfinished(table):
        raise Conflict(f"{address} was only filled in part by an import: run that import again, then export")
    states = tuple(table.cut(partition) for partition in range(table.partitions))
    return Export(table.cluster_identity, taken_ms, address, states, documents)
