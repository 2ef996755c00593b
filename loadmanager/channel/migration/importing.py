"""Fills a new log from an export: claims the log, writes the missing records, checks the whole, and marks it done.

Until the mark no broker starts on the log (see `statechannel.law.imported`). After any interruption the same import
goes on when it is run again; a different one is refused. `filling.py` plans the records.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable

import msgspec

from loadmanager.channel.migration.export import Export
from loadmanager.channel.migration.filling import differences, plan
from loadmanager.channel.migration.folding import FoldedLog
from loadmanager.errors import Conflict
from statechannel.errors import InvariantError, LogUnavailable
from statechannel.law.agreement import Agreement
from statechannel.law.imported import AT_WORK, DONE, IDENTITY, is_unfinished
from statechannel.law.partition import Genesis
from statechannel.law.record import Action, Record
from statechannel.ports import Coordination

Wanted = Callable[[Agreement, str], Agreement]
"""Makes the new agreement from the log's present one and the identity of the coordination root."""

HIGHEST_GENERATION = 9_999
"""Stores compare tokens as text, with four digits for the generation."""
ATTEMPTS = 5
PAUSE_S = 0.5
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
        genesis = self._target.table.genesis
        return genesis is not None and genesis.identity.startswith(IDENTITY) and not is_unfinished(self._target.table)

    def check(self) -> None:
        """Raises Conflict unless the log is empty, or has only records of this import."""
        target, genesis = self._target, self._target.table.genesis
        if target.is_empty:
            return
        if genesis is None:
            raise Conflict(
                f"{target.address} is not empty, and belongs to no cluster: choose a new log or topic prefix"
            )
        whose = f"{target.address} is not empty: it belongs to cluster {genesis.cluster!r}, generation"
        if target.foreign and is_unfinished(target.table):
            raise Conflict(
                f"{whose} {genesis.generation}, and was filled in part by another import: run that one again, "
                "or choose a new log or topic prefix"
            )
        if target.foreign or self.is_done:
            raise Conflict(f"{whose} {genesis.generation}; an import needs a new, empty log: choose another")
        if (genesis.cluster, genesis.generation) != (self._cluster, self._generation):
            raise Conflict(
                f"{whose} {genesis.generation}, and this import began there with generation {genesis.generation}, "
                f"not {self._generation}: run it with the same generation, or choose a new log"
            )

    async def claim(self, coordination: Coordination) -> Genesis:
        """Write the genesis record, and tie the coordination root to it. Raises Conflict, ForeignCluster."""
        self.check()
        if self._target.table.genesis is None:
            identity = f"{IDENTITY}{self._generation}-{secrets.token_hex(6)}"
            record = Record(identity, Action.GENESIS, AT_WORK, cluster=self._cluster, epoch=self._generation)
            await self._write({0: [record]})
        genesis = self._target.table.genesis
        self.check()
        assert genesis is not None
        self._root = await coordination.identify(genesis.cluster, genesis.identity)
        return genesis

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
        for attempt in range(ATTEMPTS):
            try:
                for partition, each in records.items():
                    caused = [msgspec.structs.replace(record, cause=target.cause) for record in each]
                    await target.append(partition, caused)
                return await target.read_on()
            except LogUnavailable:
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(PAUSE_S)
        return None
