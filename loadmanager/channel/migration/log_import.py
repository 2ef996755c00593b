"""Fills a new log from an export: claims the log, writes the missing records, checks the whole, and marks it done.

Until the mark no broker starts on the log (see `statechannel.law`). After any interruption the same import goes on when
it is run again; a different one is refused. The plan of the records that are missing depends only on the present table,
so it can be made again at any time; accepted records are not planned again. It uses ordinary records only. A namespace
with more bundles than a record can name is created with coarse bundles, which the importer owns, cuts and releases, as
a broker would.
"""

from __future__ import annotations

import itertools
import secrets
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from zlib import crc32

import msgspec

from loadmanager.channel.migration.export import Export
from loadmanager.channel.migration.offline_log import ATTEMPTS, FoldedLog, patiently
from loadmanager.errors import Conflict
from statechannel.errors import InvariantError, LogUnavailable
from statechannel.law.agreement import Agreement
from statechannel.law.namespace import Namespace
from statechannel.law.partition import AT_WORK, DONE, IDENTITY, ClusterIdentity, NamespaceState
from statechannel.law.record import Action, BrokerId, Record, Role, Subject, Token
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership
from statechannel.ports import Coordination

RECORD_BYTES = 800_000
"""The largest record by our estimate; logs take entries of 1 MiB."""
POSITION_BYTES = 11
"""The most bytes of a boundary in JSON."""
MOST_BOUNDARIES = RECORD_BYTES // POSITION_BYTES
_SUBJECT_BYTES = 60
"""Bytes of a subject besides its namespace."""

Step = tuple[Action, BrokerId | None]
"""The action on a bundle, and its destination."""


class Planned(msgspec.Struct, frozen=True):
    """A missing record and its partition. The writer fills in its id and cause."""

    partition: int
    record: Record


def plan(table: OwnershipTable, export: Export, agreement: Agreement | None = None) -> list[Planned]:
    """The records to write now; empty when the log is complete. Raises Conflict if another process wrote to it."""
    planned = [*_numbers(table, export.incarnations()), *_agreement(table, agreement)]
    for wanted in export.namespaces():
        partition = table.partition_of(wanted.name)
        known = table.namespace(wanted.name)
        if known is None or not known.exists:
            planned.append(Planned(partition, _create(wanted, known)))
        else:
            planned += (Planned(partition, record) for record in _bundles(known, wanted))
    return planned


def _numbers(table: OwnershipTable, highest: Mapping[str, int]) -> Iterator[Planned]:
    """No-ops that carry the highest incarnation of each name, so that the next ones are above it."""
    for name, number in highest.items():
        if table.highest_incarnation(name) < number and name != AT_WORK.name:
            yield Planned(0, Record("", Action.NOOP, BrokerId(name, number)))


def _agreement(table: OwnershipTable, agreement: Agreement | None) -> Iterator[Planned]:
    """The agreement, for every partition that has none yet."""
    for partition in range(table.partitions if agreement is not None else 0):
        if table.agreed(partition).agreement is None:
            yield Planned(partition, Record("", Action.AGREE, AT_WORK, Role.ADMIN, agreement=agreement))


def _create(wanted: NamespaceState, known: Namespace | None) -> Record:
    assert known is None, "an import deletes no namespace"
    lower = [entry.bundle.lo for entry in wanted.entries]
    # coarse bundles are as large as one record can cut: the cost of each cut grows with the namespace
    every = 1 if len(lower) < MOST_BOUNDARIES else MOST_BOUNDARIES - 1
    return Record(
        "", Action.CREATE_NAMESPACE, AT_WORK, Role.ADMIN,
        namespace=wanted.name, boundaries=(*lower[::every], wanted.entries[-1].bundle.hi),
    )  # fmt: skip


def _bundles(known: Namespace, wanted: NamespaceState) -> Iterator[Record]:
    """The next step of every bundle that differs from the wanted namespace, in as few records as possible."""
    lower = [entry.bundle.lo for entry in wanted.entries]
    steps: dict[Step, list[Subject]] = {}
    for entry in known.entries:
        bundle = entry.bundle
        first, last = bisect_left(lower, bundle.lo), bisect_left(lower, bundle.hi)
        here = wanted.entries[first:last]
        if not here or here[0].bundle.lo != bundle.lo or here[-1].bundle.hi != bundle.hi:
            raise Conflict(f"{bundle} is not in the export: another process writes to this log; choose a new one")
        step = _toward(entry, here)
        if step is not None and step[0] is Action.CREATE:
            cuts = tuple(each.bundle.lo for each in here[1:])
            yield Record("", Action.CREATE, AT_WORK, subjects=(Subject(bundle, entry.revision),), boundaries=cuts)
        elif step is not None:
            steps.setdefault(step, []).append(Subject(bundle, entry.revision))
    for (action, to), subjects in steps.items():
        for run in _runs(wanted.name, subjects):
            yield Record("", action, AT_WORK, subjects=run, to=to)


def _toward(entry: Ownership, here: Sequence[Ownership]) -> Step | None:
    """The next step of one bundle toward the wanted bundles `here` in its place; None if it is done."""
    to = here[0].holder if len(here) == 1 else AT_WORK
    ours = entry.holder == AT_WORK
    match entry.state:
        case State.UNASSIGNED:
            return (Action.OWN, to) if to is not None else None
        case State.ASSIGNING if ours:
            return Action.RETURN, None
        case State.ASSIGNED if ours:
            return (Action.CREATE, None) if len(here) > 1 else (Action.UNLOAD, None)
        case State.RELEASING if ours:
            return Action.RELEASE, None
        case _:
            if entry.holder == to:
                return None
            raise Conflict(f"{entry.bundle} went to {entry.holder}, not to {to}: a broker runs on this log already")


def _runs(namespace: str, subjects: Sequence[Subject]) -> Iterator[tuple[Subject, ...]]:
    length = max(1, RECORD_BYTES // (len(namespace) + _SUBJECT_BYTES))
    for begin in range(0, len(subjects), length):
        yield tuple(subjects[begin : begin + length])


def differences(table: OwnershipTable, export: Export) -> Iterator[str]:
    """Where a filled log differs from the export: owners by name, tokens and incarnations that do not grow."""
    for before in export.entries():
        after = table.get(before.bundle)
        name, now = _name(before), _name(after)
        if after is None:
            yield f"{before.bundle} is missing"
        elif now != name:
            yield f"the owner of {before.bundle} was {name}, and is {now}"
        elif not table.token(after) > token_before(export, before):
            yield f"the token of {before.bundle} is {table.token(after)}, not above {token_before(export, before)}"
    for name, number in export.incarnations().items():
        if name != AT_WORK.name and table.highest_incarnation(name) < number:
            yield f"{name} would get the incarnation {number} again"
    if len(table) != export.bundles:
        yield f"there are {len(table)} bundles, not {export.bundles}"


def token_before(export: Export, entry: Ownership) -> Token:
    """The fencing token of an exported ownership in the old log."""
    partition = crc32(entry.bundle.namespace.encode()) % len(export.states)
    return Token(export.cluster_identity.generation, partition, entry.token)


def _name(entry: Ownership | None) -> str | None:
    return entry.holder.name if entry is not None and entry.holder is not None else None


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
            and not self._target.table.import_is_unfinished
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
        if target.foreign and target.table.import_is_unfinished:
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
        """Write the missing records, until none is missing. Raises Conflict if another process writes too.

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
