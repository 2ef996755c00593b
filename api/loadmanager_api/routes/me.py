"""`/v1/me`: who the asked broker takes the sender for, and what they may do."""

from __future__ import annotations

from fastapi import Request
from pydantic import BaseModel

from loadmanager.model.policies.model import EVERYWHERE, AccessRole
from loadmanager_api.access.access import ACCESS, Access
from loadmanager_api.access.sender import sender_of
from loadmanager_api.routing import AnyNode, ControlRouter, on_http_loop

router = ControlRouter(tags=["this broker"])

PLACES_SHOWN = 1_000


class RoleShown(BaseModel):
    """A role, and where: `*`, `tenant/*` or `tenant/namespace`; the first thousand."""

    role: AccessRole
    namespaces: list[str]


class MeShown(BaseModel):
    """The sender. Without `authentication` everybody is admin, and `principal` is not proven."""

    principal: str
    how: str
    authentication: bool
    roles: list[RoleShown]
    broker: str
    cluster: str


@router.get("/v1/me")
@on_http_loop
async def show_me(request: Request, node: AnyNode) -> MeShown:
    """Show who sends this request, how that was proven (token, certificate, unverified), and their roles."""
    sender, access = sender_of(request.scope), _access(request)
    everything = {AccessRole.ADMIN: [EVERYWHERE]}
    roles = everything if access is None else access.grants.roles_of(sender.name)
    return MeShown(
        principal=sender.name,
        how=sender.how,
        authentication=access is not None,
        roles=[RoleShown(role=role, namespaces=places[:PLACES_SHOWN]) for role, places in roles.items()],
        broker=node.settings.advertised,
        cluster=node.settings.cluster,
    )


def _access(request: Request) -> Access | None:
    return request.scope.get(ACCESS)
