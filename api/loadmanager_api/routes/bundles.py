"""`/v1/bundles`: list bundles with state and owner; split, merge, cancel, watch.

Each change returns when the cluster has done it. Loads of bundles are those that their owners last reported; an owner
reports its 25 hottest bundles. A broker that does not lead reads the reports when it is asked: first
await `views.bundles.read`, or `read_bundles`.

A bundle's history is every record about it that the log still holds, with its verdict. `/v1/splitting` says what this
broker decided about splits and merges, and why the rest stays as it is. `/v1/watch` streams the table and its changes,
as server-sent events that a client can resume.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Header, Query, Request
from msgspec.structs import asdict
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from loadmanager.broker.node import Node
from loadmanager.channel.bundle_history import History, history_of
from loadmanager.cluster.journal import offset_of
from loadmanager.errors import Conflict, Invalid, NotFound, Unavailable
from loadmanager.leader.quarantine.evidence import LOCKED_ABOVE
from loadmanager.model.boundaries import MOST_PARTS
from loadmanager.model.host import BundleLoad
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.http.watch import EventStream
from loadmanager_api.openapi import answers
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.routing import Acting, ControlRouter, Permission, TheNode, on_http_loop
from loadmanager_api.shapes import Body, InWords, RingPosition, Shape, Whole
from loadmanager_api.state import kept
from statechannel.errors import BadSnapshot, NewerRecord, Trimmed
from statechannel.law.bundle import Bundle, check_namespace
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership


class BundleResponse(BaseModel):
    """One bundle as this broker's replica has it. `revision` and `token` are offsets of `partition`.

    The rates, in and out together, are null unless the bundle is among its owner's hottest. `waits` says why no broker
    may get a bundle that has no owner: a quarantine, with the command that ends it, or no broker takes any.
    """

    bundle: str
    namespace: str
    range: str
    state: str
    owner: str | None
    incarnation: int | None
    owner_live: bool
    target: str | None
    partition: int
    revision: int
    token: str
    last_action: str
    last_actor: str
    waits: str | None = None
    rate_msg_s: float | None = None
    rate_bytes_s: float | None = None


class BundleDetail(BundleResponse):
    """A bundle with its load, as last reported by its owner if the bundle is among the owner's hottest."""

    served_here: bool
    cuts: list[str] = []
    load: dict[str, Any] | None = None


class BundlePage(BaseModel):
    """A page of bundles. `next` is the `cursor` of the next page, null on the last one."""

    bundles: list[BundleResponse]
    next: str | None


class SplitRequest(Body):
    """How to split: into how many `parts` (default 2), or at which `positions`. `unload`: unload the children from
    their owner.
    """

    parts: Whole | None = None
    positions: Annotated[list[RingPosition], Field(max_length=MOST_PARTS)] | None = None
    algorithm: str | None = None
    unload: bool = False


class Children(BaseModel):
    """The bundles that a split made, lowest range first."""

    children: list[str]


class MergeRequest(Body):
    """Neighbours of one owner to merge, by their full names, in any order."""

    bundles: Annotated[list[str], Field(min_length=2, max_length=MOST_PARTS)]


class Merged(BaseModel):
    """The bundle that a merge made."""

    bundle: str


AWAITED_S = 1.0
"""How long an answer that also tells loads waits for them. While the log does not answer, it comes without."""


class Loads:
    """For one answer: each owner's report is looked at once, however many of its bundles are in the answer."""

    def __init__(self, node: Node) -> None:
        self._reports = node.views.bundles
        self._known: dict[str, Mapping[Bundle, BundleLoad]] = {}

    def of(self, entry: Ownership) -> BundleLoad | None:
        """None unless its present owner reported the bundle."""
        if entry.holder is None:
            return None
        name = entry.holder.name
        if name not in self._known:
            report = self._reports.get(name)
            mine = report.bundles if report is not None and report.broker == entry.holder else ()
            self._known[name] = {loaded.bundle: loaded.load for loaded in mine}
        return self._known[name].get(entry.bundle)


def hottest(node: Node, fits: Callable[[Ownership], bool], most: int) -> list[Ownership]:
    """The bundles that fit and whose load is reported: those with the highest rate of messages first, then of bytes."""
    found: list[tuple[float, float, Ownership]] = []
    for report in node.views.bundles.values():
        for loaded in report.bundles:
            entry = node.channel.table.get(loaded.bundle)
            if entry is not None and entry.holder == report.broker and fits(entry):
                found.append((-loaded.load.rate_msg_s, -loaded.load.throughput_bytes_s, entry))
    found.sort(key=lambda each: (each[0], each[1], each[2].bundle))
    return [entry for _, _, entry in found[:most]]


LOOKED_AT_ONCE = 2_000


def _bundle_fields(node: Node, entry: Ownership, loads: Loads) -> dict[str, Any]:
    """One row of the bundle list."""
    table, holder, load = node.channel.table, entry.holder, loads.of(entry)
    return {
        "bundle": str(entry.bundle),
        "namespace": entry.bundle.namespace,
        "range": entry.bundle.range,
        "state": entry.state.value,
        "owner": holder.name if holder else None,
        "incarnation": holder.incarnation if holder else None,
        "owner_live": holder is not None and node.membership.is_live(holder, node.world.clock_s()),
        "target": entry.target.name if entry.target else None,
        "partition": table.partition_of(entry.bundle.namespace),
        "revision": entry.revision,
        "token": str(table.token(entry)),
        "last_action": entry.action.value,
        "last_actor": str(entry.by),
        "waits": _waits(node, entry),
        "rate_msg_s": load.rate_msg_s if load else None,
        "rate_bytes_s": load.throughput_bytes_s if load else None,
    }


def _waits(node: Node, entry: Ownership) -> str | None:
    """Why no broker may get a bundle without an owner; None if one may."""
    if entry.state is not State.UNASSIGNED or node.incarnation is None:
        return None
    why = node.incarnation.placing.quarantine(entry.bundle)
    if why:
        return f"quarantined: {why}; to end it: loadmanager bundles release-quarantine {entry.bundle}"
    return None if node.membership.eligible() else node.membership.why_none()


def _bundle_load(node: Node, entry: Ownership) -> dict[str, Any] | None:
    report = node.views.bundles.get(entry.holder.name) if entry.holder else None
    if report is None or report.broker != entry.holder:
        return None
    loads = (loaded.load for loaded in report.bundles if loaded.bundle == entry.bundle)
    load = next(loads, None)
    return None if load is None else {**msgspec.to_builtins(load), "sampled_ms": report.sampled_ms}


async def bundles_after(
    node: Node, namespace: str | None, after: Bundle | None, state: State | None, owner: str | None, most: int
) -> list[Ownership]:
    """The first matching bundles in the order of their names, after `after`.

    Matches may be rare, and the last of a million: the loop gets its turn meanwhile.
    """
    table, found, looked_at = node.channel.table, list[Ownership](), 0
    for name in table.namespaces() if namespace is None else [namespace]:
        known = table.namespace(name)
        if known is None or (after is not None and name < after.namespace):
            continue
        begin = bisect_left(known.lower_bounds, after.lo) if after is not None and name == after.namespace else 0
        for at in range(begin, known.count, LOOKED_AT_ONCE):
            some = known.some(at, at + LOOKED_AT_ONCE)
            for entry in some:
                if (after is None or entry.bundle > after) and fits(entry, state, owner):
                    found.append(entry)
                    if len(found) == most:
                        return found
            looked_at += len(some)
            if looked_at >= LOOKED_AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
    return found


def fits(entry: Ownership, state: State | None, owner: str | None) -> bool:
    """Whether it is in this state, and this owner's: host:port, or host:port#incarnation."""
    if state is not None and entry.state is not state:
        return False
    return owner is None or (entry.holder is not None and owner in (entry.holder.name, str(entry.holder)))


router = ControlRouter(prefix="/v1/bundles", tags=["bundles"])


@router.get("", responses=answers(404))
async def list_bundles(
    node: TheNode,
    acting: Acting,
    paging: Paging,
    namespace: str | None = None,
    state: State | None = None,
    owner: Annotated[
        str | None, Query(description="only bundles of this owner: host:port, or host:port#incarnation")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    order: Annotated[
        Literal["name", "load"],
        Query(description="load: one page of bundles whose load is known, those with the highest message rate first"),
    ] = "name",
) -> BundlePage:
    """List bundles by name, page by page, or the hottest ones. 404 for an unknown namespace."""
    if namespace is not None:
        acting.operations.namespace(namespace)
    if order == "load":
        await node.views.read_bundles()
        at = hottest(node, lambda e: namespace in (None, e.bundle.namespace) and fits(e, state, owner), limit)
        return BundlePage(bundles=_rows(node, at), next=None)
    behind = paging.read(cursor, Bundle.parse)
    found = await bundles_after(node, namespace, behind, state, owner, limit + 1)
    more = len(found) > limit
    await node.views.bundles.read(AWAITED_S)
    page = found[:limit]
    return BundlePage(bundles=_rows(node, page), next=paging.next(page[-1].bundle if more else None))


def _rows(node: Node, entries: list[Ownership]) -> list[BundleResponse]:
    loads = Loads(node)
    return [BundleResponse(**_bundle_fields(node, entry, loads)) for entry in entries]


@router.get("/{tenant}/{namespace}/{hash_range}", responses=answers(404, 412))
async def show_bundle(node: TheNode, acting: Acting, tenant: str, namespace: str, hash_range: str) -> BundleDetail:
    """Show everything that this broker knows of one bundle."""
    await node.views.bundles.read(AWAITED_S)
    entry = acting.operations.bundle(Bundle.of(f"{tenant}/{namespace}", hash_range))
    return BundleDetail(
        **_bundle_fields(node, entry, Loads(node)),
        served_here=node.serving is not None and node.serving.serving(entry.bundle),
        cuts=[f"0x{cut:08x}" for cut in entry.boundaries],
        load=_bundle_load(node, entry),
    )


@router.post("/merge", responses=answers(404, 409, 412))
async def merge_bundles(acting: Acting, may: Permission, wanted: MergeRequest) -> Merged:
    """Merge neighbours of one owner into one bundle. 409 says which transfers would bring them together."""
    bundles = [Bundle.parse(name) for name in wanted.bundles]
    for bundle in bundles:
        may.require(AccessRole.OPERATOR, bundle.namespace)
    merged = await acting.operations.merge(bundles)
    return Merged(bundle=str(merged))


@router.post("/{tenant}/{namespace}/{hash_range}/split", responses=answers(404, 409, 412))
async def split_bundle(
    acting: Acting, tenant: str, namespace: str, hash_range: str, wanted: SplitRequest | None = None
) -> Children:
    """Split the bundle in two, into so many parts, or at the given positions.

    A range can also be LARGEST (most keys) or HOT (most load). 409 if the bundle has no owner, is on its way, or if its
    owner found no cuts.
    """
    wanted = wanted or SplitRequest()
    children = await acting.operations.split(
        await acting.splitting.named(f"{tenant}/{namespace}", hash_range),
        parts=wanted.parts,
        positions=wanted.positions,
        algorithm=wanted.algorithm,
        unload=wanted.unload,
    )
    return Children(children=[str(child) for child in children])


@router.post("/{tenant}/{namespace}/{hash_range}/cancel", status_code=204, responses=answers(404, 409, 412))
async def cancel_move(acting: Acting, tenant: str, namespace: str, hash_range: str) -> None:
    """Cancel the transfer or split of the bundle. 409 if there is none, or if it is too late."""
    await acting.operations.cancel(Bundle.of(f"{tenant}/{namespace}", hash_range))


MAX_BOUNDARIES = 1_000
"""The most boundaries that are shown: a namespace's creation may have 65,537."""


class Winner(Shape):
    """The record that won: at this offset it changed the bundle, so that the refused record no longer fitted."""

    offset: int
    action: str
    actor: str


class HistoryEntry(Shape):
    """One record about a bundle. `appended_ms` is the log's clock, `written_ms` its author's.

    `before` and `after` are the bundle's states (null: no such bundle); `owner` and `target` are those after the
    record; `to` is the destination that it names. A refused record has a reason in `refused`, and changed nothing;
    `copy_of` is the offset of the accepted record that it copies.
    """

    offset: int
    appended_ms: int
    written_ms: int
    record_id: str
    action: str
    actor: str
    role: str
    epoch: int
    accepted: bool
    before: str | None
    after: str | None
    owner: str | None
    target: str | None
    to: str | None
    reason: str
    cause: str
    bundles: int
    boundaries: Annotated[list[str], BeforeValidator(lambda each: [f"0x{b:08x}" for b in each[:MAX_BOUNDARIES]])]
    parents: list[InWords]
    children: list[InWords]
    refused: Annotated[str | None, BeforeValidator(lambda refused: refused or None)]
    detail: str
    winner: Winner | None
    copy_of: int | None


class BundleHistory(Shape):
    """Records about a bundle, newest first. `next` is the `cursor` of the next page, or null; `note` says what was
    trimmed.
    """

    bundle: InWords
    partition: int
    exists: bool
    state: str | None
    entries: list[HistoryEntry]
    next: str | None
    log_begin: int
    log_begin_ms: int | None
    note: str | None


def _note(found: History, since_ms: int | None) -> str | None:
    if found.older or not found.log_begin:
        return None
    if since_ms is not None and found.log_begin_ms is not None and found.log_begin_ms <= since_ms:
        return None  # nothing of the requested time
    when = (
        f" of {datetime.fromtimestamp(found.log_begin_ms / 1000, UTC):%Y-%m-%d %H:%M:%S UTC}"
        if found.log_begin_ms is not None
        else ""
    )
    unjudged = f"; what lies below offset {found.begin} cannot be judged any more" * (found.begin > found.log_begin)
    return (
        f"older records were trimmed; the log of partition {found.partition} begins at offset "
        f"{found.log_begin}{when}{unjudged}"
    )


@router.get("/{tenant}/{namespace}/{hash_range}/history", responses=answers(404, 412))
async def bundle_history(
    request: Request,
    node: TheNode,
    paging: Paging,
    tenant: str,
    namespace: str,
    hash_range: str,
    limit: Limit = 100,
    cursor: Cursor = None,
    since_ms: Annotated[
        int | None, Query(ge=0, le=2**53, description="only records since this time of the log's clock, in ms")
    ] = None,
) -> BundleHistory:
    """List every record that names the bundle, accepted or refused, newest first, also after a split or merge.

    `next` is the `cursor` of the next page. 404 for a bundle that never existed.
    """
    bundle = Bundle.of(f"{tenant}/{namespace}", hash_range)
    table, replays, before = node.channel.table, kept(request).replay_queue, paging.read(cursor, offset_of)
    if table.namespace(bundle.namespace) is None:
        raise NotFound(f"there is no namespace {bundle.namespace}, and never was")
    place = (table.partition_of(bundle.namespace), table.partitions)
    try:
        found = await history_of(
            replays, node.world.log, node.channel.topic, bundle, place, limit=limit, below=before, since_ms=since_ms
        )
    except Trimmed as error:
        raise Unavailable(f"the log was trimmed while it was read: {error}; try again") from None
    except (BadSnapshot, NewerRecord) as error:
        raise Unavailable(f"the log cannot be replayed: {error}", retry_after_s=60.0) from None
    entry = table.get(bundle)
    if not found.heard_of and entry is None:
        raise NotFound(_unheard_of(found, since_ms, before))
    present = {"exists": entry is not None, "state": None if entry is None else entry.state}
    following = paging.next(found.entries[-1].offset if found.older else None)
    return BundleHistory.model_validate(asdict(found) | present | {"next": following, "note": _note(found, since_ms)})


def _unheard_of(found: History, since_ms: int | None, before: int | None) -> str:
    if since_ms is not None:
        return f"no record names {found.bundle} in that time; ask without since_ms"
    where = f" (the log of partition {found.partition} begins at offset {found.log_begin})" if found.log_begin else ""
    if before is not None:
        return f"no record below offset {before} names {found.bundle}{where}; ask without cursor"
    heard = "no record that is still there names" if found.log_begin else "no record names"
    return f"{heard} {found.bundle}{where}; see /v1/bundles?namespace={found.bundle.namespace}"


class WholeBundle(Shape):
    """A bundle above a limit that is not split, and the rule that keeps it whole."""

    bundle: InWords
    rule: str
    detail: str


class SplittingEvent(Shape):
    """An event: a split, a merge, a child that was moved, a quarantine, or a failure of one of these."""

    at_ms: int
    what: str
    bundle: str
    why: str


class Suspect(BaseModel):
    """A bundle with which two or more brokers in a row were lost, oldest first in `evidence`. It is served.

    `odds` are those that the bundle is the cause; above `needed` it is quarantined.
    """

    bundle: str
    why: str
    odds: float
    needed: float
    evidence: list[str]


class Splitting(BaseModel):
    """This broker's last decisions on its own bundles, and recent events. `idle` says why it did not look."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    broker: str
    looks: int
    looked_ms: int
    idle: str
    not_split: dict[str, int]
    """How many bundles are not split, by rule."""
    not_merged: dict[str, int]
    above_limits: list[WholeBundle]
    suspects: list[Suspect]
    events: list[SplittingEvent]


class BundleSplitting(BaseModel):
    """Why one bundle of this broker is not split, and not merged, now."""

    bundle: str
    split: str
    merge: str


splitting_router = ControlRouter(prefix="/v1/splitting", tags=["splitting"])


@splitting_router.get("")
async def show_splitting(
    node: TheNode,
    acting: Acting,
    limit: Annotated[
        int, Query(ge=1, le=1_000, description="most bundles above a limit, most suspects, and most events")
    ] = 100,
) -> Splitting:
    """Show this broker's last look at its own bundles, and what happened lately, newest first."""
    journal = acting.splitting.journal
    splits, merges = journal.split_decision, journal.merge_decision
    kept = splits.kept if splits is not None else ()
    return Splitting(
        broker=str(acting.me),
        looks=journal.looks,
        looked_ms=journal.looked_ms,
        idle=journal.idle,
        not_split={rule.value: count for rule, count in (splits.counts if splits is not None else {}).items()},
        not_merged={rule.value: count for rule, count in (merges.counts if merges is not None else {}).items()},
        above_limits=[WholeBundle.model_validate(each) for each in kept[:limit]],
        suspects=[
            Suspect(
                bundle=str(found.bundle),
                why=str(found),
                odds=round(found.odds, 3),
                needed=LOCKED_ABOVE,
                evidence=[str(death) for death in found.deaths],
            )
            for found in islice(node.quarantine.rows(), limit)
        ],
        events=[SplittingEvent.model_validate(event) for event in list(journal.events)[: -limit - 1 : -1]],
    )


@splitting_router.get("/{tenant}/{namespace}/{hash_range}", responses=answers(404, 409, 412))
async def explain_splitting(acting: Acting, tenant: str, namespace: str, hash_range: str) -> BundleSplitting:
    """Explain why a bundle is not split and not merged now. 409 at any other broker than its owner."""
    entry = acting.operations.bundle(Bundle.of(f"{tenant}/{namespace}", hash_range))
    found = acting.splitting.reshaper.explain(entry.bundle)
    if found is None:
        whose = f"ask {entry.holder.name}, which holds it" if entry.holder is not None else "it has no holder"
        raise Conflict(f"each broker judges its own bundles, and {entry.bundle} is not held here: {whose}")
    return BundleSplitting(bundle=str(entry.bundle), split=found[0], merge=found[1])


watch_router = ControlRouter(tags=["bundles"])


@watch_router.get("/v1/watch", response_class=Response, responses=answers(409, 410, 412, kinds=("text/event-stream",)))
@on_http_loop
async def watch(
    request: Request,
    node: TheNode,
    namespace: Annotated[str | None, Query(description="only this namespace: tenant/namespace")] = None,
    since: Annotated[str | None, Query(description="a revision: the id of the last event received")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream all bundles, then every change. With `since` (or `Last-Event-ID`), stream the changes after that revision.

    400 if it is not a revision of this channel, 409 if it belongs to another log or is beyond the end, 410 if later
    changes were trimmed.
    """
    if namespace is not None:
        check_namespace(namespace)
    found = kept(request)
    try:
        begun = await found.relays.begin(namespace, last_event_id or since)
    except Invalid as error:
        raise HTTPException(400, str(error)) from None
    return EventStream(found.relays.events(namespace, begun), found.closing)
