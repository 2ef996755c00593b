"""`loadmanager namespaces`: create, list, delete, unload."""

from __future__ import annotations

from itertools import pairwise

import click

from api.cli.client import ask, run
from api.cli.names import BUNDLE, NAMESPACE, segment
from api.cli.options import Remote, asks_a_broker
from api.cli.printing import done, show
from statechannel.bundle import Bundle

_AT = "/admin/v2/namespaces"


@click.group()
def namespaces() -> None:
    """Create, delete, list, unload."""


@namespaces.command()
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option("-b", "--bundles", type=click.IntRange(1, 65_536), help="How many, evenly cut.  [default: 4]")
@click.option("--boundary", "boundaries", multiple=True, metavar="0x40000000", help="Cut here; may be repeated.")
@asks_a_broker
def create(remote: Remote, name: str, bundles: int | None, boundaries: tuple[str, ...]) -> None:
    """Create a namespace."""
    if bundles is not None and boundaries:
        raise click.UsageError("give --bundles or --boundary, not both")
    edges = ["0x00000000", *boundaries, "0xffffffff"] if boundaries else None
    body = {"bundles": {"boundaries": edges, "numBundles": bundles}}
    run(ask(remote, "PUT", f"{_AT}/{name}", body=body))
    done(remote, f"created {name}", namespace=name)


@namespaces.command("list")
@click.argument("tenant", required=False)
@asks_a_broker
def list_(remote: Remote, tenant: str | None) -> None:
    """Names of the namespaces, of one tenant or of all."""

    async def names() -> list[str]:
        tenants = [tenant] if tenant else await ask(remote, "GET", "/admin/v2/tenants")
        return [name for t in tenants for name in await ask(remote, "GET", f"{_AT}/{segment(t)}")]

    found = run(names())
    show(remote, found, ("namespace",), [(name,) for name in found], empty="no namespaces")


@namespaces.command()
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@asks_a_broker
def delete(remote: Remote, name: str) -> None:
    """Unload all its bundles, then delete it."""
    run(ask(remote, "DELETE", f"{_AT}/{name}"))
    done(remote, f"deleted {name}", namespace=name)


@namespaces.command()
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@asks_a_broker
def bundles(remote: Remote, name: str) -> None:
    """Its bundles. Their states and owners: `bundles list --namespace`."""
    found = run(ask(remote, "GET", f"{_AT}/{name}/bundles"))
    edges = found["boundaries"]
    rows = [(f"{low}_{high}",) for low, high in pairwise(edges)]
    show(remote, found, ("bundle",), rows)


@namespaces.command()
@click.argument("name", metavar="TENANT/NAMESPACE", type=NAMESPACE)
@click.option("-b", "--bundle", metavar="RANGE", help="Only this one: 0x00000000_0x40000000.")
@click.option("-d", "--destinationBroker", "--dest", "destination", metavar="HOST:PORT", help="Who shall own it.")
@asks_a_broker
def unload(remote: Remote, name: str, bundle: str | None, destination: str | None) -> None:
    """Take all its bundles, or one, from their owners; or transfer one to another broker."""
    if destination and not bundle:
        raise click.UsageError("--destinationBroker is for one bundle: name it with --bundle")
    chosen: Bundle | None = BUNDLE.convert(f"{name}/{bundle}", None, None) if bundle else None
    path = f"{_AT}/{name}/{chosen.range}/unload" if chosen else f"{_AT}/{name}/unload"
    run(ask(remote, "PUT", path, query={"destinationBroker": destination}))
    moved = f"moved to {destination}" if destination else "unloaded; lookups assign again"
    done(remote, f"{chosen or name} was {moved}", namespace=name, bundle=bundle, destination=destination)
