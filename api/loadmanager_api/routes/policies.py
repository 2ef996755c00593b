"""`/v1/policies`: every policy document, with versions, history, and a dry run of a change."""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

import msgspec
from fastapi import Depends, Header, Query, Request, Response

from loadmanager.broker.incarnation import Incarnation
from loadmanager.broker.node import Node
from loadmanager.cluster.policy_store import Written
from loadmanager.errors import Invalid
from loadmanager.model.policies.fields import patched, read
from loadmanager.model.policies.model import Kind, Policy
from loadmanager.model.policies.stored import named
from loadmanager.settings.documents.model import ABSENT, Version
from loadmanager_api.authorship import Author
from loadmanager_api.crossing import ControlRouter
from loadmanager_api.kept import Acting, TheNode
from loadmanager_api.policy_schemas import PoliciesShown, PolicyShown, PolicyWritten
from loadmanager_api.previewing import preview

router = ControlRouter(prefix="/v1/policies", tags=["policies"])

Force = Annotated[bool, Query(description="accept it even if nothing satisfies the rule at present")]
DryRun = Annotated[bool, Query(description="write nothing; list what would move")]
Seen = Annotated[int | None, Query(ge=0, description="the version to replace; 0: there is none yet")]
Reason = Annotated[str, Query(max_length=1_000, description="the reason, kept in the history")]
IfMatch = Annotated[str | None, Header(description='as `seen`: the ETag of a GET, such as "3"')]
KINDS = frozenset(kind.value for kind in Kind)


async def _document(request: Request, kind: Kind) -> Policy:
    return read(kind, await request.body())


Document = Annotated[Policy, Depends(_document)]
"""The policy in the request's body, read where the request was."""

_ETAG = re.compile(r'(?:W/)?"?(\d{1,15})"?')


@router.get("")
async def list_policies(node: TheNode, kind: Kind | None = None) -> PoliciesShown:
    """List all policies in force, by kind and name, and those that this broker cannot use."""
    documents = node.policies.documents
    names = {*documents.values(), *(each.name for each in documents.unreadable())}
    found = [documents.get(key) for key in sorted(names) if key.partition("/")[0] in KINDS]
    shown = [_shown(each) for each in found if each is not None]
    return PoliciesShown(
        revision=documents.revision, policies=[each for each in shown if kind is None or each.kind == kind]
    )


@router.get("/{kind}/{name:path}/history")
async def policy_history(node: TheNode, kind: Kind, name: str) -> list[PolicyShown]:
    """List every version of one document, deletions too, oldest first."""
    if kind is Kind.NAMESPACE and "/" not in name:  # the path of a namespace that is called `tenant/history`
        return [_shown(node.policies.get(kind, f"{name}/history"))]
    return [_shown(each) for each in node.policies.history(kind, name)]


@router.get("/{kind}/{name:path}")
async def show_policy(node: TheNode, response: Response, kind: Kind, name: str) -> PolicyShown:
    """Show one document. Its ETag is its version."""
    found = node.policies.get(kind, name)
    response.headers["ETag"] = f'"{found.version}"'
    return _shown(found)


@router.put("/{kind}/{name:path}")
async def put_policy(
    response: Response,
    node: TheNode,
    acting: Acting,
    policy: Document,
    author: Author,
    kind: Kind,
    name: str,
    seen: Seen = None,
    force: Force = False,
    dry_run: DryRun = False,
    reason: Reason = "",
    if_match: IfMatch = None,
) -> PolicyWritten:
    """Set a document. Only bundles that it makes misplaced will move, within the limits of a round.

    412 for a document that can never be valid. 409 if nothing satisfies a rule (`force` overrides this), or if the
    version is no longer `seen`.
    """
    if dry_run:
        checked = await node.policies.check(kind, name, policy, force=force)
        return await _would_be(node, acting, kind, name, policy, checked.notes, checked.refused)
    written = await node.policies.put(
        kind, name, policy, seen=_seen(seen, if_match), author=author, reason=reason, force=force
    )
    return _written(response, written)


@router.patch("/{kind}/{name:path}")
async def patch_policy(
    response: Response,
    node: TheNode,
    acting: Acting,
    author: Author,
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
    if dry_run:
        before = node.policies.current_of(kind, name)
        policy = patched(kind, before, patch)
        checked = await node.policies.check(kind, name, policy, force=force)
        return await _would_be(node, acting, kind, name, policy, checked.notes, checked.refused)
    written = await node.policies.change(
        kind, name, lambda before: patched(kind, before, patch), author=author, reason=reason, force=force
    )
    if written is not None:
        return _written(response, written)
    version = node.policies.version(kind, name)
    return PolicyWritten(kind=kind.value, name=name, version=version, notes=["it was so already"])


@router.delete("/{kind}/{name:path}")
async def delete_policy(
    response: Response,
    node: TheNode,
    acting: Acting,
    author: Author,
    kind: Kind,
    name: str,
    seen: Seen = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    if_match: IfMatch = None,
    force: Force = False,
) -> PolicyWritten:
    """Delete a document.

    404 if there is none. 409 if its version is no longer `seen`, or if a namespace would be left without any broker
    (`force` overrides this).
    """
    if dry_run:
        checked = await node.policies.check_deletion(kind, name, force=force)
        return await _would_be(node, acting, kind, name, None, checked.notes, checked.refused)
    written = await node.policies.delete(
        kind, name, seen=_seen(seen, if_match), author=author, reason=reason, force=force
    )
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


def _shown(version: Version[Policy]) -> PolicyShown:
    kind, name = named(version.name)
    policy = None if version.value is None else cast("dict[str, object]", msgspec.to_builtins(version.value))
    return PolicyShown(
        kind=kind.value,
        name=name,
        version=version.version,
        policy=policy,
        author=version.author,
        at_ms=version.at_ms,
        reason=version.reason,
        readable=version.readable,
        defect=version.defect,
    )


def _seen(seen: int | None, if_match: str | None) -> int | None:
    """The version that the caller has seen, by query or header. Raises Invalid."""
    if if_match is None or if_match.strip() == "*":
        return seen
    match = _ETAG.fullmatch(if_match.strip())
    if match is None:
        raise Invalid(f'If-Match: {if_match} is no version; write If-Match: "{seen or ABSENT}"')
    if seen is not None and seen != int(match[1]):
        raise Invalid(f"seen={seen} and If-Match: {if_match} name different versions; give one")
    return int(match[1])
