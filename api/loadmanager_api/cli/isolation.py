"""`loadmanager ns-isolation-policy`: which namespaces may be on which brokers, as pulsar-admin names the commands."""

from __future__ import annotations

from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.grouping import Group
from loadmanager_api.cli.names import BROKER, segment
from loadmanager_api.cli.options import changes, confirm, disrupts, shows
from loadmanager_api.cli.policies import delete_as_pulsar, show_preview
from loadmanager_api.cli.printing import done, show, show_pairs
from loadmanager_api.cli.remote import Remote

_CLUSTER = click.argument("cluster", metavar="CLUSTER")
_POLICY = click.argument("policy", metavar="POLICY")


@click.group("ns-isolation-policy", cls=Group)
def isolation() -> None:
    """Bind namespaces to brokers, as in pulsar-admin."""


@isolation.command("set", short_help="Create or replace a policy.")
@_CLUSTER
@_POLICY
@click.option(
    "--namespaces", required=True, metavar="REGEX[,…]", help="Patterns; each matches a whole tenant/namespace."
)
@click.option(
    "--primary", required=True, metavar="REGEX[,…]", help="Patterns; each matches a whole host:port, or a whole host."
)
@click.option(
    "--secondary", default="", metavar="REGEX[,…]", help="Patterns of brokers to use while too few primaries are there."
)
@click.option(
    "--auto-failover-policy-type",
    "kind",
    type=click.Choice(["min_available"]),
    default="min_available",
    help="The only type.",
)
@click.option(
    "--auto-failover-policy-params",
    "params",
    default="min_limit=1,usage_threshold=100",
    show_default=True,
    metavar="KEY=VALUE[,…]",
    help="min_limit: primaries that must be there; usage_threshold: percent from which a broker counts as full.",
)
@click.option(
    "--unload-scope",
    "scope",
    type=click.Choice(["all_matching", "none", "changed"]),
    help="Accepted for pulsar-admin; has no effect: only misplaced bundles move.",
)
@click.option("--force", is_flag=True, help="Write the policy even if no broker satisfies it now.")
@changes
def set_(
    remote: Remote,
    cluster: str,
    policy: str,
    namespaces: str,
    primary: str,
    secondary: str,
    kind: str,
    params: str,
    scope: str | None,
    force: bool,
) -> None:
    """Create or replace a policy. --dry-run shows first what would move."""
    body = {
        "namespaces": _listed(namespaces),
        "primary": _listed(primary),
        "secondary": _listed(secondary),
        "auto_failover_policy": {"policy_type": kind, "parameters": _params(params)},
        "unload_scope": scope,
    }
    if remote.dry_run:
        run(ask(remote, "GET", _path(cluster)))  # which refuses another cluster's name
        show_preview(remote, "PUT", "isolation", policy, _as_ours(body))
        return
    run(ask(remote, "POST", _path(cluster, policy), query={"force": "true" if force else None}, body=body))
    done(remote, f"isolation policy {policy} is set", policy=policy)


@isolation.command("get")
@_CLUSTER
@_POLICY
@shows
def get(remote: Remote, cluster: str, policy: str) -> None:
    """Show one policy."""
    found = run(ask(remote, "GET", _path(cluster, policy)))
    show_pairs(remote, found, _pairs(found))


@isolation.command("list")
@_CLUSTER
@shows
def list_(remote: Remote, cluster: str) -> None:
    """List all policies."""
    found = run(ask(remote, "GET", _path(cluster)))
    rows = [(name, *(value for _, value in _pairs(each))) for name, each in found.items()]
    columns = ("policy", "namespaces", "primary", "secondary", "min", "usage %")
    show(remote, found, columns, rows, empty="no isolation policies")


@isolation.command("delete")
@_CLUSTER
@_POLICY
@disrupts
def delete(remote: Remote, cluster: str, policy: str) -> None:
    """Delete a policy; its brokers take all namespaces again."""
    confirm(remote, f"This deletes the isolation policy {policy}: its brokers take all namespaces again")
    delete_as_pulsar(remote, _path(cluster, policy), "isolation", policy, "isolation policy", policy=policy)


@isolation.command("brokers")
@_CLUSTER
@shows
def brokers(remote: Remote, cluster: str) -> None:
    """List, for each broker, the namespaces that the policies bind to it."""
    found = run(ask(remote, "GET", _path(cluster, "brokers")))
    _show_brokers(remote, found, found)


@isolation.command("broker")
@_CLUSTER
@click.option("--broker", required=True, metavar="HOST:PORT", type=BROKER, help="Name of the broker.")
@shows
def broker(remote: Remote, cluster: str, broker: str) -> None:
    """List the namespaces that the policies bind to one broker."""
    found = run(ask(remote, "GET", f"{_path(cluster, 'brokers')}/{segment(broker)}"))
    _show_brokers(remote, found, [found])


def _show_brokers(remote: Remote, answer: Any, found: list[dict[str, Any]]) -> None:
    rows = [
        (each["brokerName"], each["policyName"], each["primary"], ", ".join(each["namespaceRegex"])) for each in found
    ]
    show(remote, answer, ("broker", "policy", "primary", "namespaces"), rows, empty="no brokers")


def _pairs(policy: dict[str, Any]) -> list[tuple[str, object]]:
    lists = [(field, ", ".join(policy[field])) for field in ("namespaces", "primary", "secondary")]
    params = policy["auto_failover_policy"]["parameters"]
    return [*lists, ("min available", params["min_limit"]), ("usage threshold", params["usage_threshold"])]


def _path(cluster: str, policy: str | None = None) -> str:
    root = f"/admin/v2/clusters/{segment(cluster)}/namespaceIsolationPolicies"
    return f"{root}/{segment(policy)}" if policy else root


def _as_ours(body: dict[str, Any]) -> dict[str, Any]:
    """The same document as /v1/policies has it."""
    params = body["auto_failover_policy"]["parameters"]
    numbers = {
        "min_available": int(params.get("min_limit", 1)),
        "usage_threshold_percent": float(params.get("usage_threshold", 100)),
    }
    return {field: body[field] for field in ("namespaces", "primary", "secondary")} | numbers


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _params(text: str) -> dict[str, str]:
    params: dict[str, str] = {}
    for part in _listed(text):
        key, equals, value = part.partition("=")
        if not equals or key not in ("min_limit", "usage_threshold"):
            raise click.UsageError(f"{part!r}: write min_limit=1,usage_threshold=80")
        params[key] = value.strip()
    return params
