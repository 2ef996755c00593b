"""`/v1/operations`: requests that are carried out once although they are sent twice, or after they were answered."""

from __future__ import annotations

from loadmanager.cluster.operation_log import Operation
from loadmanager.errors import NotFound
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.access import May
from loadmanager_api.openapi import answers
from loadmanager_api.operations import OperationResponse, OperationStatus, operation_response, state_of
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.routing import AuthorOf, ControlRouter, Permission, TheNode

router = ControlRouter(prefix="/v1/operations", tags=["operations"])


@router.get("")
async def list_operations(
    paging: Paging,
    node: TheNode,
    sender: AuthorOf,
    may: Permission,
    state: OperationStatus | None = None,
    by: str | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> list[OperationResponse]:
    """List the last operations, newest first: your own, or those of all if you are viewer of the cluster."""
    everything = may.has(AccessRole.VIEWER)
    found = [
        each
        for each in node.operation_log.all()
        if (everything or each.begun.principal == sender.name)
        and by in (None, each.begun.principal)
        and state in (None, state_of(node, each))
    ]
    page = paging.of(found, lambda each: f"{2**53 - each.offset}", limit, cursor, r"\d+")
    return [operation_response(node, each) for each in page]


@router.get("/{operation_id}", responses=answers(404))
async def show_operation(node: TheNode, sender: AuthorOf, may: Permission, operation_id: str) -> OperationResponse:
    """Show one operation, with its progress, and its answer once there is one."""
    return operation_response(node, _visible(node.operation_log.get(operation_id), sender.name, may, AccessRole.VIEWER))


@router.post("/{operation_id}/cancel", status_code=202, responses=answers(404, 409))
async def cancel_operation(node: TheNode, sender: AuthorOf, may: Permission, operation_id: str) -> OperationResponse:
    """Ask the broker of an operation to stop it. What was done stays; a move under way is completed. 409 if it has
    ended.
    """
    _visible(node.operation_log.get(operation_id), sender.name, may, AccessRole.OPERATOR)
    return operation_response(node, await node.operation_log.cancel(operation_id, sender.name))


def _visible(found: Operation, name: str, may: May, role: AccessRole) -> Operation:
    """The operation, for who asked for it and those with the role in the cluster. Raises NotFound for all others."""
    if found.begun.principal == name or may.has(role):
        return found
    raise NotFound(f"there is no operation {found.id} of yours")
