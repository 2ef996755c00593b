"""Creates, unloads and deletes namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from loadmanager.channel.operations import bundles
from loadmanager.channel.operations.writer import RACES, AdminWriter, always_changing
from loadmanager.errors import Conflict, Invalid, NotFound
from statechannel.errors import InvalidName, RecordTooLarge
from statechannel.law import codec
from statechannel.law.bundle import check_new_namespace, check_tiling
from statechannel.law.namespace import Namespace
from statechannel.law.record import BUNDLES_A_RECORD, NEVER, Action, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Reason, Refusal


async def create(writer: AdminWriter, name: str, boundaries: Sequence[int]) -> None:
    """Create it with these boundaries. Raises Invalid, Conflict (it exists), Unavailable."""
    try:
        check_new_namespace(name)
        check_tiling(boundaries)
    except InvalidName as error:
        raise Invalid(str(error)) from None
    seen = await writer.sure(lambda: _free_since(writer, name))
    record = _about(writer, Action.CREATE_NAMESPACE, name, seen, tuple(boundaries))
    try:
        writer.accepted(await writer.channel.publish(record))
    except RecordTooLarge as error:
        raise Invalid(f"too many boundaries: {error}") from None


def _free_since(writer: AdminWriter, name: str) -> int:
    """The revision at which the name is free. Raises Conflict while there is such a namespace."""
    known = writer.channel.table.namespace(name)
    if known is not None and known.exists:
        raise Conflict(f"namespace {name} exists already")
    return known.revision if known else NEVER


async def delete(writer: AdminWriter, name: str) -> None:
    """Unload all its bundles, then delete it. Raises NotFound, Conflict (in use all the time), Unavailable."""
    for _ in range(RACES):
        known = await writer.sure(lambda: writer.namespace(name))
        if not await _unload_once(writer, known):
            continue
        verdict = await writer.channel.publish(_deletion(writer, known))
        if not isinstance(verdict, Refusal) or verdict.reason not in (Reason.NOT_UNASSIGNED, Reason.STALE):
            writer.accepted(verdict)
            return
    raise Conflict(f"{name} is assigned again as fast as it is unloaded: stop its clients first")


async def unload(writer: AdminWriter, name: str) -> None:
    """Unload every bundle. Raises NotFound, Conflict, Unavailable."""
    for _ in range(RACES):
        if await _unload_once(writer, await writer.sure(lambda: writer.namespace(name))):
            return
    raise always_changing(name)


async def _unload_once(writer: AdminWriter, known: Namespace) -> bool:
    """Unload its bundles; False if some were split or merged meanwhile. Raises Conflict, Unavailable."""
    unloads: list[asyncio.Task[None]] = []
    for begin in range(0, known.count, BUNDLES_A_RECORD):
        await writer.channel.replica.steps.passed()
        owned = [e.bundle for e in known.touched(begin, begin + BUNDLES_A_RECORD) if e.state is not State.UNASSIGNED]
        if owned:
            unloads.append(asyncio.ensure_future(bundles.unload_all(writer, owned)))
    try:
        for error in await asyncio.gather(*unloads, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error
    except NotFound:
        return False
    return True


def _deletion(writer: AdminWriter, known: Namespace) -> Record:
    """The record of a deletion. It says what its author saw of the bundles only if all brokers can read that."""
    record = _about(writer, Action.DELETE_NAMESPACE, known.name, known.revision)
    judged = msgspec.structs.replace(record, seen_latest=known.latest)
    return judged if codec.version_of(judged) <= writer.channel.write_version else record


def _about(writer: AdminWriter, action: Action, name: str, seen: int, boundaries: tuple[int, ...] = ()) -> Record:
    return Record(
        "",
        action,
        writer.me,
        Role.ADMIN,
        namespace=name,
        boundaries=boundaries,
        seen_namespace=seen,
        reason="admin",
    )
