"""What is taken out of a log: every partition as it was folded. Pure; how it looks in a file is in `export_file.py`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadmanager.channel.migration.documents import DocumentEntries
from loadmanager.errors import Conflict
from statechannel.law.agreement import Agreement
from statechannel.law.imported import is_unfinished
from statechannel.law.partition import Genesis, NamespaceState, PartitionState
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Ownership


class Export(msgspec.Struct, frozen=True):
    """A channel at one moment of each of its partitions. A namespace is in one of them, so each is of one moment."""

    genesis: Genesis
    taken_ms: int
    """When, on the wall clock of whoever took it; for people only."""
    address: str
    """Of the log; for people only."""
    states: tuple[PartitionState, ...]
    documents: DocumentEntries = msgspec.field(default_factory=dict)
    """Policies, settings and plans, as they stand in their topics."""

    def namespaces(self) -> Iterator[NamespaceState]:
        """Those that exist."""
        for state in self.states:
            yield from (namespace for namespace in state.namespaces if namespace.entries)

    def entries(self) -> Iterator[Ownership]:
        """Every bundle."""
        for namespace in self.namespaces():
            yield from namespace.entries

    def incarnations(self) -> dict[str, int]:
        """The highest number of each broker's name that the log shows."""
        highest: dict[str, int] = {}
        for state in self.states:
            for name, number in state.incarnations:
                highest[name] = max(number, highest.get(name, 0))
        return highest

    @property
    def agreement(self) -> Agreement | None:
        """What brokers agreed on, or were about to; None if the log had no word on it yet."""
        agreed = self.states[0].agreed
        return agreed.following or agreed.agreement

    @property
    def moved_to(self) -> str | None:
        """Where the channel goes on if this log was closed, in part or as a whole."""
        return next((state.retired for state in self.states if state.retired is not None), None)

    @property
    def next_generation(self) -> int:
        """The lowest that no log can have had which this one knows of: the one it was moved to gave out tokens too."""
        return self.genesis.generation + (1 if self.moved_to is None else 2)

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


def export_of(table: OwnershipTable, documents: DocumentEntries, address: str, taken_ms: int) -> Export:
    """All that was replayed so far. Raises Conflict for a log that belongs to nobody, or is not whole itself."""
    if table.genesis is None:
        raise Conflict(f"{address} belongs to no cluster, so there is nothing to export: correct --log")
    if is_unfinished(table):
        raise Conflict(f"{address} was only filled in part by an import: run that import again, then export")
    states = tuple(table.cut(partition) for partition in range(table.partitions))
    return Export(table.genesis, taken_ms, address, states, documents)
