"""`/v1/audit`: who asked for which change, from where, and what became of it; newest first."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from msgspec.structs import asdict
from pydantic import BaseModel

from loadmanager.cluster.audit_log import AuditEntry, Result
from loadmanager.cluster.journal import offset_of
from loadmanager_api.paging import Cursor, Limit, Paging, SinceMs
from loadmanager_api.routing import ControlRouter, TheNode

router = ControlRouter(prefix="/v1/audit", tags=["audit"])


class AuditEntryResponse(BaseModel):
    """One request. `how` the principal was proven: token, certificate, or unverified (it says so itself).

    `action` names what was asked for, `about` the thing, `namespace` the namespace if it is about one; `asked` are its
    parameters and its body, `before` and `after` the state of the thing at the asked broker. `result`: done, refused
    (nothing was changed), failed (it may have been carried out, wholly or in part). `offset` is that of the entry.
    """

    id: str
    at_ms: int
    principal: str
    how: str
    address: str
    broker: str
    action: str
    about: str
    namespace: str
    asked: dict[str, Any]
    before: Any
    after: Any
    result: Result
    status: int
    detail: str
    offset: int


class AuditPage(BaseModel):
    """Entries, newest first. `next` is the `cursor` of the next page, null if there is none."""

    entries: list[AuditEntryResponse]
    next: str | None


@router.get("")
async def list_audit(
    node: TheNode,
    paging: Paging,
    by: Annotated[str | None, Query(description="only requests of this principal")] = None,
    namespace: Annotated[str | None, Query(description="only requests about this namespace or its bundles")] = None,
    action: Annotated[str | None, Query(description="only this action, such as unload_bundle")] = None,
    result: Annotated[Result | None, Query(description="only requests with this result")] = None,
    since_ms: SinceMs = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditPage:
    """List requests that changed something, or were to, and those that were refused, at any broker; newest first.

    A page may have fewer than `limit` entries, even none, and still have a `next`: one request reads 20,000 entries.
    """

    def wanted(entry: AuditEntry) -> bool:
        return (
            by in (None, entry.principal)
            and namespace in (None, entry.namespace)
            and action in (None, entry.action)
            and result in (None, entry.result)
            and (since_ms is None or entry.at_ms >= since_ms)
        )

    found, following = await node.audit.newest(limit, wanted, paging.read(cursor, offset_of))
    if since_ms is not None and following is not None and await node.audit.ended_before(following, since_ms):
        following = None
    entries = [AuditEntryResponse.model_validate(asdict(each.record) | {"offset": each.offset}) for each in found]
    return AuditPage(entries=entries, next=paging.next(following))
