"""`loadmanager clusters`: the cluster, and failure domains: brokers that fail together, as pulsar-admin names them."""

from __future__ import annotations

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.options import changes, confirm, disrupts, shows
from loadmanager_api.cli.policies import delete_as_pulsar, show_preview
from loadmanager_api.cli.printing import done, show
from loadmanager_api.cli.pulsar import thin_commands
from loadmanager_api.cli.remote import Remote

_CLUSTER = click.argument("cluster", metavar="CLUSTER")
_DOMAIN = click.option("--domain-name", "domain", required=True, metavar="DOMAIN", help="Name of the domain.")
_BROKERS = click.option("--broker-list", "brokers", required=True, metavar="HOST:PORT[,…]", help="Its brokers.")
_FORCE = click.option("--force", is_flag=True, help="Write the domain even if a broker is in another one already.")


@click.group(cls=Group)
def clusters() -> None:
    """Show the cluster, and manage failure domains, as in pulsar-admin."""


for command in thin_commands("clusters"):
    clusters.add_command(command)


@clusters.command("create-failure-domain")
@_CLUSTER
@_DOMAIN
@_BROKERS
@_FORCE
@changes
def create(remote: Remote, cluster: str, domain: str, brokers: str, force: bool) -> None:
    """Create a failure domain: brokers that can fail together."""
    _set(remote, cluster, domain, brokers, force)


@clusters.command("update-failure-domain")
@_CLUSTER
@_DOMAIN
@_BROKERS
@_FORCE
@changes
def update(remote: Remote, cluster: str, domain: str, brokers: str, force: bool) -> None:
    """Replace the brokers of a failure domain."""
    _set(remote, cluster, domain, brokers, force)


def _set(remote: Remote, cluster: str, domain: str, brokers: str, force: bool) -> None:
    names = [name.strip() for name in brokers.split(",") if name.strip()]
    if remote.dry_run:
        run(ask(remote, "GET", _all(cluster)))  # which refuses another cluster's name
        show_preview(remote, "PUT", "failure-domain", domain, {"brokers": names})
        return
    query = {"force": "true" if force else None}
    run(ask(remote, "POST", _path(cluster, domain), query=query, body={"brokers": names}))
    done(remote, f"failure domain {domain}: {', '.join(names)}", domain=domain, brokers=names)


@clusters.command("get-failure-domain")
@_CLUSTER
@_DOMAIN
@shows
def get(remote: Remote, cluster: str, domain: str) -> None:
    """List the brokers of a failure domain."""
    found = run(ask(remote, "GET", _path(cluster, domain)))
    show(remote, found, ("broker",), [(name,) for name in found["brokers"]])


@clusters.command("list-failure-domains")
@_CLUSTER
@shows
def list_(remote: Remote, cluster: str) -> None:
    """List all failure domains with their brokers."""
    found = run(ask(remote, "GET", _all(cluster)))
    rows = [(name, ", ".join(domain["brokers"])) for name, domain in found.items()]
    show(remote, found, ("domain", "brokers"), rows, empty="no failure domains")


@clusters.command("delete-failure-domain")
@_CLUSTER
@_DOMAIN
@disrupts
def delete(remote: Remote, cluster: str, domain: str) -> None:
    """Delete a failure domain; its brokers return to the domains that they registered."""
    confirm(remote, f"This deletes the failure domain {domain}")
    delete_as_pulsar(remote, _path(cluster, domain), "failure-domain", domain, "failure domain", domain=domain)


def _all(cluster: str) -> str:
    return f"/admin/v2/clusters/{segment(cluster)}/failureDomains"


def _path(cluster: str, domain: str) -> str:
    return f"{_all(cluster)}/{segment(domain)}"
