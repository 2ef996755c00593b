"""`loadmanager policies`: every policy document, with its versions; and what a change would move.

`loadmanager ns-isolation-policy` says which namespaces may be on which brokers, and `loadmanager clusters` has the
cluster and its failure domains (brokers that fail together), as pulsar-admin names the commands.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import IO, Any

import click

from loadmanager.model.policies.model import Kind
from loadmanager_api.cli.client import Query, ask, ask_all, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import BROKER, segment
from loadmanager_api.cli.options import changes, confirm, disrupts, shows, since_option, since_query
from loadmanager_api.cli.printing import done, echo, show, show_pairs
from loadmanager_api.cli.pulsar import thin_commands
from loadmanager_api.cli.remote import Remote

_KIND = click.argument("kind", type=click.Choice([kind.value for kind in Kind]))
_NAME = click.argument("name", metavar="NAME")
_SEEN = click.option(
    "--seen", metavar="N", type=click.IntRange(0), help="Only if the policy has this version; 0: only if there is none."
)
_REASON = click.option("--reason", metavar="TEXT", help="Reason, for the history.")


@click.group(cls=Group)
def policies() -> None:
    """Show, set and delete policies of every kind."""


@policies.command("list")
@click.option("--kind", type=click.Choice([kind.value for kind in Kind]), help="Only policies of this kind.")
@click.option("--prefix", metavar="TEXT", help="Only policies whose name begins so, such as shop/.")
@click.option("--by", metavar="AUTHOR", help="Only policies that this author wrote last.")
@since_option
@shows
def list_(remote: Remote, kind: str | None, prefix: str | None, by: str | None, since: int | None) -> None:
    """List the policies that hold now, by kind and name."""
    query = {"kind": kind, "prefix": prefix, "by": by, **since_query(since)}
    found = run(ask_all(remote, "/v1/policies", query))
    rows = [(p["kind"], p["name"], p["version"], _worded(p), p["author"]) for p in found["policies"]]
    show(remote, found, ("kind", "name", "version", "policy", "author"), rows, empty="no policies")


@policies.command("show")
@_KIND
@_NAME
@shows
def show_(remote: Remote, kind: str, name: str) -> None:
    """Show one policy."""
    found = run(ask(remote, "GET", _path(kind, name)))
    pairs = [(field, found[field]) for field in ("version", "author", "reason")]
    if found["defect"]:
        pairs.append(("not in force", f"{found['defect']}; the version before holds, if there is one"))
    values = [(field, json.dumps(value)) for field, value in (found["policy"] or {}).items()]
    show_pairs(remote, found, [*pairs, ("changed", _when(found["at_ms"])), *values])


@policies.command("set", short_help="Create or replace a policy.")
@_KIND
@_NAME
@click.argument("policy", metavar="[JSON]", required=False)
@click.option("-f", "--file", "file", type=click.File(), help="File with the JSON; - is standard input.")
@_SEEN
@click.option("--force", is_flag=True, help="Write the policy even if no broker satisfies it now.")
@_REASON
@changes
def set_(
    remote: Remote,
    kind: str,
    name: str,
    policy: str | None,
    file: IO[str] | None,
    seen: int | None,
    force: bool,
    reason: str | None,
) -> None:
    """Create or replace a policy: `policies set namespace shop/x '{"weight": 2}'`."""
    if (policy is None) == (file is None):
        raise click.UsageError("give either the policy as JSON or --file")
    try:
        body = json.loads(policy if policy is not None else file.read() if file is not None else "")
    except ValueError as error:
        raise click.UsageError(f"that is not valid JSON: {error}") from None
    query = _query(seen, reason, force=force)
    found = run(ask(remote, "PUT", _path(kind, name), query=query, body=body, previews=True))
    show_written(remote, f"{kind} {name}: version {found['version']}", found)


@policies.command("delete")
@_KIND
@_NAME
@_SEEN
@click.option("--force", is_flag=True, help="Delete even if a bundle is left without any broker.")
@_REASON
@disrupts
def delete(remote: Remote, kind: str, name: str, seen: int | None, force: bool, reason: str | None) -> None:
    """Delete a policy."""
    confirm(remote, f"This deletes the policy {kind} {name}")
    found = run(ask(remote, "DELETE", _path(kind, name), query=_query(seen, reason, force=force), previews=True))
    show_written(remote, f"{kind} {name}: deleted, which is version {found['version']}", found)


@policies.command("history")
@_KIND
@_NAME
@since_option
@shows
def history(remote: Remote, kind: str, name: str, since: int | None) -> None:
    """List every version of one policy, oldest first."""
    found = run(ask_all(remote, _path(kind, name) + "/history", since_query(since)))
    rows = [(each["version"], _when(each["at_ms"]), each["author"], _worded(each), each["reason"]) for each in found]
    show(remote, found, ("version", "when", "author", "policy", "reason"), rows, empty="no versions")


def show_preview(remote: Remote, method: str, kind: str, name: str, body: Any = None) -> None:
    """Show what a change of a policy would move: the dry run of commands that write policies as Pulsar does."""
    show_written(remote, "", run(ask(remote, method, _path(kind, name), body=body, previews=True)))


def delete_as_pulsar(remote: Remote, path: str, kind: str, name: str, what: str, **facts: object) -> None:
    """Delete a policy at Pulsar's `path`; a dry run shows our preview, where it is."""
    if remote.dry_run:
        run(ask(remote, "GET", path))
        show_preview(remote, "DELETE", kind, name)
        return
    run(ask(remote, "DELETE", path))
    done(remote, f"deleted {what} {name}", **facts)


def show_written(remote: Remote, text: str, found: dict[str, Any]) -> None:
    """Report a change of a policy; of a dry run, what would move."""
    if not remote.for_people:
        done(remote, "", **found)
        return
    for note in (*found["notes"], *(f"overridden: {rule}" for rule in found["forced"])):
        echo(f"note: {note}", err=True)
    preview = found["preview"]
    if preview is None:
        done(remote, text)
        return
    total = preview["misplaced_total"]
    echo(f"nothing was changed; {total} bundles would have to move, {len(preview['moves'])} in the next round")
    rows = [(move["bundle"], move["source"], move["destination"], move["reason"]) for move in preview["moves"]]
    planned = {move["bundle"] for move in preview["moves"]}
    rows += [(m["bundle"], m["broker"], None, "later") for m in preview["misplaced"] if m["bundle"] not in planned]
    show(remote, found, ("bundle", "from", "to", "why"), rows, empty="")


def _worded(version: dict[str, Any]) -> str:
    """What the document says, or why it is not in force."""
    return f"not in force: {version['defect']}" if version["defect"] else json.dumps(version["policy"])


def _query(seen: int | None, reason: str | None, *, force: bool) -> Query:
    return {"seen": seen, "reason": reason, "force": force}


def _path(kind: str, name: str) -> str:
    return f"/v1/policies/{kind}/{'/'.join(segment(part) for part in name.split('/'))}"


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
def set_isolation(
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
        run(ask(remote, "GET", _isolation_path(cluster)))  # which refuses another cluster's name
        show_preview(remote, "PUT", "isolation", policy, _as_ours(body))
        return
    run(ask(remote, "POST", _isolation_path(cluster, policy), query={"force": force}, body=body))
    done(remote, f"isolation policy {policy} is set", policy=policy)


@isolation.command("get")
@_CLUSTER
@_POLICY
@shows
def get_isolation(remote: Remote, cluster: str, policy: str) -> None:
    """Show one policy."""
    found = run(ask(remote, "GET", _isolation_path(cluster, policy)))
    show_pairs(remote, found, _pairs(found))


@isolation.command("list")
@_CLUSTER
@shows
def list_isolation(remote: Remote, cluster: str) -> None:
    """List all policies."""
    found = run(ask(remote, "GET", _isolation_path(cluster)))
    rows = [(name, *(value for _, value in _pairs(each))) for name, each in found.items()]
    columns = ("policy", "namespaces", "primary", "secondary", "min", "usage %")
    show(remote, found, columns, rows, empty="no isolation policies")


@isolation.command("delete")
@_CLUSTER
@_POLICY
@disrupts
def delete_isolation(remote: Remote, cluster: str, policy: str) -> None:
    """Delete a policy; its brokers take all namespaces again."""
    confirm(remote, f"This deletes the isolation policy {policy}: its brokers take all namespaces again")
    delete_as_pulsar(remote, _isolation_path(cluster, policy), "isolation", policy, "isolation policy", policy=policy)


@isolation.command("brokers")
@_CLUSTER
@shows
def brokers(remote: Remote, cluster: str) -> None:
    """List, for each broker, the namespaces that the policies bind to it."""
    found = run(ask(remote, "GET", _isolation_path(cluster, "brokers")))
    _show_brokers(remote, found, found)


@isolation.command("broker")
@_CLUSTER
@click.option("--broker", required=True, metavar="HOST:PORT", type=BROKER, help="Name of the broker.")
@shows
def broker(remote: Remote, cluster: str, broker: str) -> None:
    """List the namespaces that the policies bind to one broker."""
    found = run(ask(remote, "GET", f"{_isolation_path(cluster, 'brokers')}/{segment(broker)}"))
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


def _isolation_path(cluster: str, policy: str | None = None) -> str:
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
    query = {"force": force}
    run(ask(remote, "POST", _domain_path(cluster, domain), query=query, body={"brokers": names}))
    done(remote, f"failure domain {domain}: {', '.join(names)}", domain=domain, brokers=names)


@clusters.command("get-failure-domain")
@_CLUSTER
@_DOMAIN
@shows
def get_domain(remote: Remote, cluster: str, domain: str) -> None:
    """List the brokers of a failure domain."""
    found = run(ask(remote, "GET", _domain_path(cluster, domain)))
    show(remote, found, ("broker",), [(name,) for name in found["brokers"]])


@clusters.command("list-failure-domains")
@_CLUSTER
@shows
def list_domains(remote: Remote, cluster: str) -> None:
    """List all failure domains with their brokers."""
    found = run(ask(remote, "GET", _all(cluster)))
    rows = [(name, ", ".join(domain["brokers"])) for name, domain in found.items()]
    show(remote, found, ("domain", "brokers"), rows, empty="no failure domains")


@clusters.command("delete-failure-domain")
@_CLUSTER
@_DOMAIN
@disrupts
def delete_domain(remote: Remote, cluster: str, domain: str) -> None:
    """Delete a failure domain; its brokers return to the domains that they registered."""
    confirm(remote, f"This deletes the failure domain {domain}")
    delete_as_pulsar(remote, _domain_path(cluster, domain), "failure-domain", domain, "failure domain", domain=domain)


def _all(cluster: str) -> str:
    return f"/admin/v2/clusters/{segment(cluster)}/failureDomains"


def _domain_path(cluster: str, domain: str) -> str:
    return f"{_all(cluster)}/{segment(domain)}"
