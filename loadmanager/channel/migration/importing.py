"""Fills a new log from an export: claims the log, writes the missing records, checks the whole, and marks it done.

Until the mark no broker starts on the log (see `statechannel.law.imported`). After any interruption the same import
goes on when it is run again; a different one is refused. `filling.py` plans the records.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable

import msgspec

from loadmanager.channel.migration.export import Export
from loadmanager.channel.migration.filling import differences, plan
from loadmanager.channel.migration.folding import FoldedLog
from loadmanager.channel.migration.patience import ATTEMPTS, patiently
from loadmanager.errors import Conflict
from statechannel.errors import InvariantError, LogUnavailable
from statechannel.law.agreement import Agreement
from statechannel.law.imported import AT_WORK, DONE, IDENTITY, is_unfinished
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import Action, Record
from statechannel.ports import Coordination

Wanted = Callable[[Agreement, str], Agreement]
"""Makes the new agreement from the log's present one and the identity of the coordination root."""

HIGHEST_GENERATION = 9_999
"""Stores compare tokens as text, with four digits for the generation."""
SHOWN = 5


def in_root(before: Agreement, root: str) -> Agreement:
    """The same agreement with another coordination root."""
    return msgspec.structs.replace(before, root=root)


def check_generation(generation: int) -> int:
    """Raises Conflict if tokens of this generation could not be compared."""
    if generation > HIGHEST_GENERATION:
        raise Conflict(f"generation {generation} is above {HIGHEST_GENERATION}, the highest that a token can hold")
    return generation


class Import:
    """One import into `target`, whose `cause` identifies the import. `generation` is that of the new log."""

    def __init__(self, target: FoldedLog, cluster: str, generation: int) -> None:
        self._target = target
        self._cluster = cluster
        self._generation = check_generation(generation)
        self._root = ""
        """The identity of the log's coordination root, once it is claimed."""
        self._ids = (f"{secrets.token_hex(6)}-{number}" for number in itertools.count(1))

    @property
    def is_done(self) -> bool:
        """Whether the log was filled completely, by this or an earlier run."""
        cluster_identity = self._target.table.cluster_identity
        return (
            cluster_identity is not None
            and cluster_identity.identity.startswith(IDENTITY)
            and not is_unfinished(self._target.table)
        )

    def check(self) -> None:
        """Raises Conflict unless the log is empty, or has only records of this import."""
        target, cluster_identity = self._target, self._target.table.cluster_identity
        if target.is_empty:
            return
        if cluster_identity is None:
            raise Conflict(
                f"{target.address} is not empty, and belongs to no cluster: choose a new log or topic prefix"
            )
        whose = f"{target.address} is not empty: it belongs to cluster {cluster_identity.cluster!r}, generation"
        if target.foreign and is_unfinished(target.table):
            raise Conflict(
                f"{whose} {cluster_identity.generation}, and was filled in part by another import: run that one again, "
                "or choose a new log or topic prefix"
            )
        if target.foreign or self.is_done:
            raise Conflict(f"{whose} {cluster_identity.generation}; an import needs a new, empty log: choose another")
        if (cluster_identity.cluster, cluster_identity.generation) != (self._cluster, self._generation):
            raise Conflict(
                f"{whose} {cluster_identity.generation}, and this import began there with that generation, "
                f"not {self._generation}: run it with the same generation, or choose a new log"
            )

    async def claim(self, coordination: Coordination) -> ClusterIdentity:
        """Write the genesis record, and tie the coordination root to it. Raises Conflict, ForeignCluster."""
        self.check()
        if self._target.table.cluster_identity is None:
            identity = f"{IDENTITY}{self._generation}-{secrets.token_hex(6)}"
            record = Record(identity, Action.GENESIS, AT_WORK, cluster=self._cluster, epoch=self._generation)
            await self._write({0: [record]})
        cluster_identity = self._target.table.cluster_identity
        self.check()
        assert cluster_identity is not None
        self._root = await coordination.identify(cluster_identity.cluster, cluster_identity.identity)
        return cluster_identity

    async def fill(self, export: Export, wanted: Wanted = in_root) -> None:
        """Write the missing records, until none is missing. Raises Conflict if somebody else writes too.

        If the export has an agreement, the log gets the one that `wanted` makes of it; brokers must fit it.
        """
        word = export.agreement
        said = None
        if word is not None:
            said = msgspec.structs.replace(wanted(word, self._root), partitions=self._target.table.partitions)
        tried = 0
        before: object = None
        while planned := plan(self._target.table, export, said):
            tried = tried + 1 if planned == before else 0
            if tried == ATTEMPTS:
                raise InvariantError(f"the new log refuses {planned[0]}: this is a bug, the old log is as it was")
            before = planned
            records: dict[int, list[Record]] = {}
            for each in planned:
                record = msgspec.structs.replace(each.record, id=next(self._ids))
                records.setdefault(each.partition, []).append(record)
            await self._write(records)
            self.check()

    async def finish(self, export: Export) -> None:
        """Read the log again from the start, compare it with the export, and open it to brokers. Raises Conflict."""
        again = FoldedLog(self._target.log, self._target.address, self._target.cause)
        await again.open()
        found = list(itertools.islice(differences(again.table, export), SHOWN))
        if found:
            raise Conflict(f"the new log differs from the old one, and stays closed: {'; '.join(found)}")
        await self._write({0: [Record(next(self._ids), Action.NOOP, DONE)]})
        if not self.is_done:
            raise LogUnavailable("the last record of the import was not read back: run it again")

    async def _write(self, records: dict[int, list[Record]]) -> None:
        """Append, and read on. A record that was written twice counts once; one that is missing is planned again."""
        target = self._target

        async def write() -> None:
            for partition, each in records.items():
                caused = [msgspec.structs.replace(record, cause=target.cause) for record in each]
                await target.append(partition, caused)
            await target.read_on()

        await patiently(write)
