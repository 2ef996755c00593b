"""`/admin/v2/brokers` and `/admin/v2/tenants`, as far as they mean something here.

Tenants are not stored: one exists as long as it has a namespace. So creating one succeeds without effect, and one that
still has namespaces cannot be deleted.
"""

from __future__ import annotations

from fastapi.responses import PlainTextResponse

from loadmanager.errors import Conflict, NotFound
from loadmanager.model.registration import VERSION
from loadmanager_api.http.probes import check_health, check_live, check_ready
from loadmanager_api.openapi import answers
from loadmanager_api.presenting import leader_of
from loadmanager_api.routes.pulsar_brokers import check_cluster
from loadmanager_api.routing import Acting, AnyNode, ControlRouter, TheNode, on_http_loop
from loadmanager_api.schemas import BrokerInfo, TenantInfo
from statechannel.law.bundle import check_namespace

router = ControlRouter(prefix="/admin/v2", tags=["brokers"])


@router.get("/brokers")
async def list_brokers(node: TheNode) -> list[str]:
    """List the names of the brokers that are registered and thought to be alive."""
    suspected = node.membership.suspected
    return sorted(name for name, peer in node.membership.peers.items() if peer.broker not in suspected)


@router.get("/brokers/leaderBroker", responses=answers(404))
async def leader_broker(node: TheNode) -> BrokerInfo:
    """Show the leader that this broker last saw. 404 while there is none."""
    leader = leader_of(node)
    if leader is None:
        raise NotFound("nobody leads at the moment; try again")
    peer = node.membership.peer(leader)
    return BrokerInfo(serviceUrl=peer.registration.admin_url if peer else "", brokerId=leader.name)


@router.get("/brokers/health", response_class=PlainTextResponse)
@on_http_loop
async def health(node: AnyNode) -> str:
    """Answer `ok` if this broker is registered and its proofs are fresh, so that it could serve now. Else 503."""
    check_health(node)
    return "ok"


@router.get("/brokers/ready", response_class=PlainTextResponse)
@on_http_loop
async def ready(node: AnyNode) -> str:
    """Answer `ok` once this broker is registered and acts. Else 503."""
    check_ready(node)
    return "ok"


@router.get("/brokers/live", response_class=PlainTextResponse)
@on_http_loop
async def live(node: AnyNode) -> str:
    """Answer `ok` while the control loop turns, whatever log and coordination do. Else 503: restart the process."""
    check_live(node)
    return "ok"


@router.get("/brokers/version", response_class=PlainTextResponse)
@on_http_loop
async def version() -> str:
    """Show the release of this broker."""
    return VERSION


@router.get("/brokers/{cluster}", responses=answers(404))
async def list_cluster(node: TheNode, cluster: str) -> list[str]:
    """List brokers, as `/brokers`. 404 for any other cluster than this one."""
    check_cluster(node, cluster)
    return await list_brokers(node)


# --- tenants


@router.get("/tenants")
async def list_tenants(node: TheNode) -> list[str]:
    """List the tenants that have a namespace."""
    return sorted({name.partition("/")[0] for name in node.channel.table.namespaces()})


@router.get("/tenants/{tenant}", responses=answers(404))
async def show_tenant(node: TheNode, tenant: str) -> TenantInfo:
    """Show a tenant. 404 if it has no namespace."""
    if not node.channel.table.namespaces(tenant):
        raise NotFound(f"tenant {tenant!r} has no namespace, and so does not exist; create {tenant}/some-namespace")
    return TenantInfo(allowedClusters=[node.settings.cluster])


@router.put("/tenants/{tenant}", status_code=204, responses=answers(412))
async def create_tenant(acting: Acting, tenant: str) -> None:
    """Accept the tenant and do nothing: a tenant exists as soon as it has a namespace. The body is ignored."""
    check_namespace(f"{tenant}/any")


@router.post("/tenants/{tenant}", status_code=204, responses=answers(404))
async def update_tenant(node: TheNode, tenant: str) -> None:
    """Accept the change and do nothing: tenants have no properties here. 404 for a tenant without a namespace."""
    if not node.channel.table.namespaces(tenant):
        raise NotFound(f"tenant {tenant!r} has no namespace, and so does not exist; create {tenant}/some-namespace")


@router.delete("/tenants/{tenant}", status_code=204, responses=answers(404, 409))
async def delete_tenant(node: TheNode, tenant: str) -> None:
    """Refuse: 409 while the tenant has namespaces, 404 otherwise, since a tenant without namespaces does not exist."""
    namespaces = node.channel.table.namespaces(tenant)
    if not namespaces:
        raise NotFound(f"tenant {tenant!r} has no namespace, and so does not exist: there is nothing to delete")
    shown = ", ".join(namespaces[:8]) + (" …" if len(namespaces) > 8 else "")
    raise Conflict(f"tenant {tenant!r} has namespaces, delete them first: {shown}")
