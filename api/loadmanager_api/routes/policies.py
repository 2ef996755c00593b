"""`/v1/policies`: every policy document, with versions, history, and a dry run of a change.

A dry run runs the strategy on the model with the new policies, and shows the moves.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, cast

import msgspec
from fastapi import Depends, Query, Request, Response
from msgspec.structs import asdict
from pydantic import BaseModel

from loadmanager.broker.node import Incarnation, Node
from loadmanager.cluster.policy_store import Written
from loadmanager.documents.fold import Version
from loadmanager.model.policies.codec import named
from loadmanager.model.policies.constraints import misplaced
from loadmanager.model.policies.model import TYPES, Kind, Policies, Policy
from loadmanager.model.policies.validation import patched, read
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager_api.conditions import When
from loadmanager_api.openapi import answers, body, shape
from loadmanager_api.paging import MOST, Cursor, Limit, Paging, SinceMs
from loadmanager_api.routing import Acting, Author, ControlRouter, TheNode, on_http_loop
from loadmanager_api.shapes import BrokerName, InWords, Shape


class PolicyResponse(BaseModel):
    """One version of a document. `policy` is null in a version that deleted it. The ETag is the version.

    If `readable` is false, the asked broker cannot use this version, because of its `defect`; `policy` is then the
    version before, which stays in force.
    """

    kind: str
    name: str
    version: int
    policy: dict[str, Any] | None
    author: str
    at_ms: int
    reason: str
    readable: bool = True
    defect: str = ""


class PoliciesResponse(BaseModel):
    """Policies in force, by kind and name. `revision` grows with each change of any document. `next` is the `cursor` of
    the next page, null on the last one.
    """

    revision: int
    policies: list[PolicyResponse]
    next: str | None


class PolicyMove(Shape):
    """A move that the next round would make if the document were in force."""

    bundle: InWords
    source: BrokerName
    destination: BrokerName | None
    stage: str
    reason: str


class Misplaced(BaseModel):
    """A bundle that would have to leave its broker."""

    bundle: str
    broker: str


class Preview(BaseModel):
    """The effect of a change of policies.

    `moves` are those of the next round, within its limits. `misplaced_total` counts all bundles that would have to
    move; `misplaced` lists the first thousand.
    """

    misplaced_total: int
    misplaced: list[Misplaced]
    moves: list[PolicyMove]
    reason: str


class PolicyWritten(BaseModel):
    """An accepted change, or with `dry_run` one that would be accepted. `forced` lists overridden rules."""

    kind: str
    name: str
    version: int
    dry_run: bool = False
    notes: list[str] = []
    forced: list[str] = []
    preview: Preview | None = None


SHOWN = 1_000
_BY_RULE = (Stage.POLICY, Stage.DRAIN)


async def preview(acting: Incarnation, policies: Policies) -> Preview:
    """As if these were the policies."""
    deciding = acting.rebalancer.deciding
    settings = deciding.settings()
    model = await deciding.model(settings, policies)
    wrong = misplaced(policies, model.brokers, deciding.table, settings)
    shown = [Misplaced(bundle=str(bundle), broker=broker.name) for bundle, broker in islice(wrong, SHOWN)]
    total = len(shown) + sum(1 for _ in wrong)
    decision = await deciding.would_decide(model, settings)
    moves = [PolicyMove.model_validate(move) for move in decision.moves if move.stage in _BY_RULE]
    return Preview(misplaced_total=total, misplaced=shown, moves=moves, reason=decision.reason)


router = ControlRouter(prefix="/v1/policies", tags=["policies"])

Force = Annotated[bool, Query(description="accept it even if nothing satisfies the rule at present")]
DryRun = Annotated[bool, Query(description="write nothing; list what would move")]
Seen = Annotated[int | None, Query(ge=0, description="the version to replace; 0: there is none yet")]
Reason = Annotated[str, Query(max_length=1_000, description="the reason, kept in the history")]
KINDS = frozenset(kind.value for kind in Kind)


async def _document(request: Request, kind: Kind) -> Policy:
    return read(kind, await request.body())


Document = Annotated[Policy, Depends(_document)]
"""The policy in the request's body, read where the request was."""


@router.get("")
@on_http_loop
async def list_policies(
    node: TheNode,
    paging: Paging,
    kind: Kind | None = None,
    prefix: Annotated[
        str | None, Query(max_length=1_000, description="only names with this prefix", examples=["shop/"])
    ] = None,
    by: Annotated[str | None, Query(description="only versions of this author")] = None,
    since_ms: SinceMs = None,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> PoliciesResponse:
    """List the policies in force by kind and name, and those that this broker cannot use. `since_ms`: changed since."""
    documents = node.policies.documents
    revision = documents.revision  # before them: they may be newer, never older
    found = [
        version
        for version in documents.newest()
        if version.name.partition("/")[0] in ([kind] if kind else KINDS)
        and version.name.partition("/")[2].startswith(prefix or "")
        and by in (None, version.author)
        and (since_ms is None or version.at_ms >= since_ms)
    ]
    page = paging.of(found, lambda version: version.name, limit, cursor, r"[a-z-]+/.+")
    return PoliciesResponse(revision=revision, policies=[_shown(each) for each in page], next=paging.following)


@router.get("/{kind}/{name:document}", responses=answers(404))
async def show_policy(node: TheNode, response: Response, kind: Kind, name: str) -> PolicyResponse:
    """Show one document. Its ETag begins with its version."""
    found = node.policies.get(kind, name)
    response.headers["ETag"] = f'"{found.version}"'
    return _shown(found)


@router.get("/{kind}/{name:with_history}/history", responses=answers(404))
async def policy_history(
    node: TheNode,
    paging: Paging,
    kind: Kind,
    name: str,
    since_ms: SinceMs = None,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> list[PolicyResponse]:
    """List every version of one document, deletions too, oldest first."""
    found = [each for each in node.policies.history(kind, name) if since_ms is None or each.at_ms >= since_ms]
    return [_shown(each) for each in paging.of(found, lambda each: f"{each.version:015}", limit, cursor, r"\d{15}")]


@router.put("/{kind}/{name:document}", responses=answers(404, 409, 412), openapi_extra=body(shape(*TYPES.values())))
async def put_policy(
    response: Response,
    node: TheNode,
    acting: Acting,
    policy: Document,
    author: Author,
    when: When,
    kind: Kind,
    name: str,
    seen: Seen = None,
    force: Force = False,
    dry_run: DryRun = False,
    reason: Reason = "",
) -> PolicyWritten:
    """Set a document. Only bundles that it makes misplaced will move, within the limits of a round.

    412 for a document that can never be valid. 409 if nothing satisfies a rule (`force` overrides this), or if the
    version is no longer `seen`; 412 if it differs from `If-Match`.
    """
    seen = when.seen(seen, node.policies.latest(kind, name))
    if dry_run:
        checked = await when.met(node.policies.check(kind, name, policy, seen=seen, force=force))
        return await _would_be(node, acting, kind, name, policy, checked.notes, checked.refused)
    written = await when.met(
        node.policies.put(kind, name, policy, seen=seen, author=author, reason=reason, force=force)
    )
    return _written(response, written)


@router.patch("/{kind}/{name:document}", responses=answers(404, 409, 412))
async def patch_policy(
    response: Response,
    node: TheNode,
    acting: Acting,
    author: Author,
    when: When,
    kind: Kind,
    name: str,
    patch: dict[str, Any],
    force: Force = False,
    dry_run: DryRun = False,
    reason: Reason = "",
) -> PolicyWritten:
    """Set the given fields of a document; null removes a field. Other fields stay. A document without fields is
    deleted.
    """
    seen = when.seen(None, node.policies.latest(kind, name))
    if dry_run:
        before = node.policies.current_of(kind, name)
        policy = patched(kind, before, patch)
        checked = await when.met(node.policies.check(kind, name, policy, seen=seen, force=force))
        return await _would_be(node, acting, kind, name, policy, checked.notes, checked.refused)
    changed = node.policies.change(
        kind, name, lambda before: patched(kind, before, patch), seen=seen, author=author, reason=reason, force=force
    )
    written = await when.met(changed)
    if written is not None:
        return _written(response, written)
    version = node.policies.version(kind, name)
    return PolicyWritten(kind=kind.value, name=name, version=version, notes=["it was so already"])


@router.delete("/{kind}/{name:document}", responses=answers(404, 409, 412))
async def delete_policy(
    response: Response,
    node: TheNode,
    acting: Acting,
    author: Author,
    when: When,
    kind: Kind,
    name: str,
    seen: Seen = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    force: Force = False,
) -> PolicyWritten:
    """Delete a document.

    404 if there is none. 409 if its version is no longer `seen`, or if a namespace would be left without any broker
    (`force` overrides this).
    """
    seen = when.seen(seen, node.policies.latest(kind, name))
    if dry_run:
        checked = await when.met(node.policies.check_deletion(kind, name, seen=seen, force=force))
        return await _would_be(node, acting, kind, name, None, checked.notes, checked.refused)
    written = await when.met(node.policies.delete(kind, name, seen=seen, author=author, reason=reason, force=force))
    return _written(response, written)


async def _would_be(
    node: Node,
    acting: Incarnation,
    kind: Kind,
    name: str,
    policy: Policy | None,
    notes: tuple[str, ...] = (),
    refused: tuple[str, ...] = (),
) -> PolicyWritten:
    return PolicyWritten(
        kind=kind.value,
        name=name,
        version=node.policies.version(kind, name) + 1,
        dry_run=True,
        notes=list(notes),
        forced=list(refused),
        preview=await preview(acting, node.policies.proposed(kind, name, policy)),
    )


def _written(response: Response, written: Written) -> PolicyWritten:
    kind, name = named(written.version.name)
    response.headers["ETag"] = f'"{written.version.version}"'
    return PolicyWritten(
        kind=kind.value,
        name=name,
        version=written.version.version,
        notes=list(written.notes),
        forced=list(written.forced),
    )


def _shown(version: Version[Policy]) -> PolicyResponse:
    kind, name = named(version.name)
    policy = None if version.value is None else cast("dict[str, object]", msgspec.to_builtins(version.value))
    return PolicyResponse.model_validate(
        asdict(version) | {"kind": kind, "name": name, "policy": policy, "readable": version.readable}
    )
