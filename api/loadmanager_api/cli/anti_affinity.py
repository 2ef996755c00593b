"""`loadmanager namespaces …-anti-affinity-…`: groups of namespaces that are kept apart, as pulsar-admin names them."""

from __future__ import annotations

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.names import NAMESPACE, segment
from loadmanager_api.cli.options import changes, shows
from loadmanager_api.cli.policies import show_preview
from loadmanager_api.cli.printing import done, show
from loadmanager_api.cli.remote import Remote

_AT = "/admin/v2/namespaces"
_NAME = click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)


@click.command("set-anti-affinity-group")
@_NAME
@click.option(
    "-g",
    "--group",
    required=True,
    help="Name of the group; its namespaces are spread over failure domains and brokers.",
)
@changes
def set_group(remote: Remote, name: str, group: str) -> None:
    """Put a namespace into a group; it leaves its former group."""
    if remote.dry_run:
        show_preview(remote, "PATCH", "namespace", name, {"anti_affinity_group": group})
        return
    run(ask(remote, "POST", f"{_AT}/{name}/antiAffinity", body=group))
    done(remote, f"{name} is in group {group}", namespace=name, group=group)


@click.command("get-anti-affinity-group")
@_NAME
@shows
def get_group(remote: Remote, name: str) -> None:
    """Show the group of a namespace."""
    group = run(ask(remote, "GET", f"{_AT}/{name}/antiAffinity"))
    done(remote, group or f"{name} is in no group", namespace=name, group=group)


@click.command("delete-anti-affinity-group")
@_NAME
@changes
def delete_group(remote: Remote, name: str) -> None:
    """Take a namespace out of its group."""
    if remote.dry_run:
        show_preview(remote, "PATCH", "namespace", name, {"anti_affinity_group": None})
        return
    run(ask(remote, "DELETE", f"{_AT}/{name}/antiAffinity"))
    done(remote, f"{name} is in no group", namespace=name, group=None)


@click.command("get-anti-affinity-namespaces")
@click.option("-c", "--cluster", required=True, metavar="CLUSTER", help="Name of the cluster.")
@click.option("-g", "--group", required=True, help="Name of the group.")
@click.option("-p", "--tenant", help="Accepted for pulsar-admin; has no effect.")
@shows
def group_namespaces(remote: Remote, cluster: str, group: str, tenant: str | None) -> None:
    """List the namespaces of a group."""
    path = f"{_AT}/{segment(cluster)}/antiAffinity/{segment(group)}"
    found = run(ask(remote, "GET", path, query={"tenant": tenant}))
    show(remote, found, ("namespace",), [(name,) for name in found], empty="no namespaces")


ANTI_AFFINITY_COMMANDS = (set_group, get_group, delete_group, group_namespaces)
