"""`loadmanager policies`: every policy document, with its versions; and what a change would move.

`loadmanager ns-isolation-policy` says which namespaces may be on which brokers, and `loadmanager clusters` has the
cluster and its failure domains (brokers that fail together), as pulsar-admin names the commands.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from loadmanager.model.policies.model import Kind
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import BROKER, NameType, segment
from loadmanager_api.cli.options import since_option
from loadmanager_api.cli.printing import show, show_pairs
from loadmanager_api.cli.pulsar import CLUSTER
from loadmanager_api.cli.pulsar import ROWS as PULSARS
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Column, Given, Request, commands, first


def _worded(version: dict[str, Any]) -> str:
    """What the document says, or why it is not in force."""
    return f"not in force: {version['defect']}" if version["defect"] else json.dumps(version["policy"])


def _when(version: dict[str, Any]) -> str:
    return datetime.fromtimestamp(version["at_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _in_path(name: str) -> str:
    return "/".join(segment(part) for part in name.split("/"))


_KIND = click.argument("kind", type=click.Choice([kind.value for kind in Kind]))
_NAME = click.argument("name", metavar="NAME", type=NameType("policy", str, "policies", _in_path))
_SEEN = click.option(
    "--seen", metavar="N", type=click.IntRange(0), help="Only if the policy has this version; 0: only if there is none."
)
_REASON = click.option("--reason", metavar="TEXT", help="Reason, for the history.")
_AT = "/v1/policies/{kind}/{name}"


def _read(given: Given) -> Any:
    policy, file = given["policy"], given["file"]
    if (policy is None) == (file is None):
        raise click.UsageError("give either the policy as JSON or --file")
    try:
        return json.loads(policy if file is None else file.read())
    except ValueError as error:
        raise click.UsageError(f"that is not valid JSON: {error}") from None


def _show(remote: Remote, found: dict[str, Any]) -> None:
    pairs = [(field, found[field]) for field in ("version", "author", "reason")]
    if found["defect"]:
        pairs.append(("not in force", f"{found['defect']}; the version before holds, if there is one"))
    values = [(field, json.dumps(value)) for field, value in (found["policy"] or {}).items()]
    show_pairs(remote, found, [*pairs, ("changed", _when(found)), *values])


ROWS = (
    Request("list", "GET /v1/policies", "List the policies that hold now, by kind and name.", (click.option("--kind",
        type=click.Choice([kind.value for kind in Kind]), help="Only policies of this kind."), click.option("--prefix",
        metavar="TEXT", help="Only policies whose name begins with TEXT, such as shop/."), click.option("--by",
        metavar="AUTHOR", help="Only policies that this author wrote last."), since_option), pages=True,
        part="policies",
        columns={"kind": "kind", "name": "name", "version": "version", "policy": _worded, "author": "author"},
        empty="no policies"),
    Request("show", f"GET {_AT}", "Show one policy.", (_KIND, _NAME), view=_show),
    Request("set", f"PUT {_AT}?seen&reason&force",
        "Create or replace a policy: `policies set namespace shop/x '{\"weight\": 2}'`.", (_KIND, _NAME,
        click.argument("policy", metavar="[JSON]", required=False), click.option("-f", "--file", "file",
        type=click.File(), help="File with the JSON; - is standard input."), _SEEN, click.option("--force",
        is_flag=True, help="Write the policy even if no broker satisfies it now."), _REASON), body=_read,
        previews=True, done="{kind} {name}: version {version}"),
    Request("delete", f"DELETE {_AT}", "Delete a policy.", (_KIND, _NAME, _SEEN, click.option("--force", is_flag=True,
        help="Delete even if a bundle is left without any broker."), _REASON),
        confirm="This deletes the policy {kind} {name}", previews=True,
        done="{kind} {name}: deleted, which is version {version}"),
    Request("history", f"GET {_AT}/history", "List every version of one policy, oldest first.",
        (_KIND, _NAME, since_option), pages=True,
        columns={"version": "version", "when": _when, "author": "author", "policy": _worded, "reason": "reason"},
        empty="no versions"),
)  # fmt: skip


@click.group(cls=Group, commands=commands(ROWS))
def policies() -> None:
    """Show, set and delete policies of every kind."""


_POLICY = click.argument("policy", metavar="POLICY")
_ISOLATION = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"


def _cells(policy: dict[str, Any]) -> dict[str, object]:
    params = policy["auto_failover_policy"]["parameters"]
    lists = {field: ", ".join(policy[field]) for field in ("namespaces", "primary", "secondary")}
    return {**lists, "min available": params["min_limit"], "usage threshold": params["usage_threshold"]}


def _cell(name: str) -> Column:
    return lambda entry: _cells(entry[1])[name]


def _show_brokers(remote: Remote, answer: Any) -> None:
    found = answer if isinstance(answer, list) else [answer]
    rows = [
        (each["brokerName"], each["policyName"], each["primary"], ", ".join(each["namespaceRegex"])) for each in found
    ]
    show(remote, answer, ("broker", "policy", "primary", "namespaces"), rows, empty="no brokers")


def _isolation(given: Given) -> dict[str, Any]:
    return {
        "namespaces": _listed(given["namespaces"]),
        "primary": _listed(given["primary"]),
        "secondary": _listed(given["secondary"]),
        "auto_failover_policy": {"policy_type": given["kind"], "parameters": _params(given["params"])},
        "unload_scope": given["scope"],
    }


def _as_ours(given: Given) -> dict[str, Any]:
    """The same document as /v1/policies has it."""
    body = _isolation(given)
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


_DELETES = "Delete a policy; its brokers take all namespaces again."

ISOLATION_ROWS = (
    Request("get", f"GET {_ISOLATION}/{{policy}}", "Show one policy.", (CLUSTER, _POLICY), view=lambda remote,
        found: show_pairs(remote, found, list(_cells(found).items()))),
    Request("list", f"GET {_ISOLATION}", "List all policies.", (CLUSTER,), columns={"policy": first,
        **{name: _cell(name) for name in ("namespaces", "primary", "secondary")}, "min": _cell("min available"),
        "usage %": _cell("usage threshold")}, empty="no isolation policies"),
    Request("brokers", f"GET {_ISOLATION}/brokers",
        "List, for each broker, the namespaces that the policies bind to it.", (CLUSTER,), view=_show_brokers),
    Request("broker", f"GET {_ISOLATION}/brokers/{{broker}}",
        "List the namespaces that the policies bind to one broker.", (CLUSTER, click.option("--broker", required=True,
        metavar="HOST:PORT", type=BROKER, help="Name of the broker.")), view=_show_brokers),
    Request("set", f"POST {_ISOLATION}/{{policy}}?force",
        "Create or replace a policy. --dry-run shows first what would move.", (CLUSTER, _POLICY,
        click.option("--namespaces", required=True, metavar="REGEX[,…]",
        help="Patterns; each matches a whole tenant/namespace."), click.option("--primary", required=True,
        metavar="REGEX[,…]", help="Patterns; each matches a whole host:port, or a whole host."),
        click.option("--secondary", default="", metavar="REGEX[,…]",
        help="Patterns of brokers to use while too few primaries are there."),
        click.option("--auto-failover-policy-type", "kind", type=click.Choice(["min_available"]),
        default="min_available", help="The only type."), click.option("--auto-failover-policy-params", "params",
        default="min_limit=1,usage_threshold=100", show_default=True, metavar="KEY=VALUE[,…]",
        help="min_limit: primaries that must be there; usage_threshold: percent from which a broker counts as full."),
        click.option("--unload-scope", "scope", type=click.Choice(["all_matching", "none", "changed"]),
        help="Accepted for pulsar-admin; has no effect: only misplaced bundles move."), click.option("--force",
        is_flag=True, help="Write the policy even if no broker satisfies it now.")), body=_isolation,
        instead="PUT /v1/policies/isolation/{policy}", document=_as_ours, needs=_ISOLATION,
        done="isolation policy {policy} is set", facts=lambda given: {"policy": given["policy"]}),
    Request("delete", f"DELETE {_ISOLATION}/{{policy}}", _DELETES, (CLUSTER, _POLICY), short=_DELETES,
        instead="DELETE /v1/policies/isolation/{policy}", needs=f"{_ISOLATION}/{{policy}}",
        confirm="This deletes the isolation policy {policy}: its brokers take all namespaces again",
        done="deleted isolation policy {policy}", facts=lambda given: {"policy": given["policy"]}),
)  # fmt: skip


@click.group("ns-isolation-policy", cls=Group, commands=commands(ISOLATION_ROWS))
def isolation() -> None:
    """Bind namespaces to brokers, as in pulsar-admin."""


_DOMAINS = "/admin/v2/clusters/{cluster}/failureDomains"
_OURS = "{} /v1/policies/failure-domain/{{domain}}"
_DOMAIN = click.option("--domain-name", "domain", required=True, metavar="DOMAIN", help="Name of the domain.")
_SET_DOMAIN = (
    CLUSTER,
    _DOMAIN,
    click.option("--broker-list", "brokers", required=True, metavar="HOST:PORT[,…]", help="Its brokers."),
    click.option("--force", is_flag=True, help="Write the domain even if a broker is in another one already."),
)


def _domain(given: Given) -> dict[str, Any]:
    return {"brokers": _listed(given["brokers"])}


def _set_domain(name: str, help: str) -> Request:
    return Request(
        name, f"POST {_DOMAINS}/{{domain}}?force", help, _SET_DOMAIN, short=help, body=_domain,
        instead=_OURS.format("PUT"), document=_domain, needs=_DOMAINS,
        facts=lambda given: {"domain": given["domain"], **_domain(given)},
        done=lambda given: f"failure domain {given['domain']}: {', '.join(_listed(given['brokers']))}",
    )  # fmt: skip


_DELETES_DOMAIN = "Delete a failure domain; its brokers return to the domains that they registered."

DOMAIN_ROWS = (
    Request("get-failure-domain", f"GET {_DOMAINS}/{{domain}}", "List the brokers of a failure domain.",
        (CLUSTER, _DOMAIN), part="brokers", columns="broker"),
    Request("list-failure-domains", f"GET {_DOMAINS}", "List all failure domains with their brokers.", (CLUSTER,),
        columns={"domain": first, "brokers": lambda entry: ", ".join(entry[1]["brokers"])}, empty="no failure domains"),
    _set_domain("create-failure-domain", "Create a failure domain: brokers that can fail together."),
    _set_domain("update-failure-domain", "Replace the brokers of a failure domain."),
    Request("delete-failure-domain", f"DELETE {_DOMAINS}/{{domain}}", _DELETES_DOMAIN, (CLUSTER, _DOMAIN),
        short=_DELETES_DOMAIN, instead=_OURS.format("DELETE"), needs=f"{_DOMAINS}/{{domain}}",
        confirm="This deletes the failure domain {domain}", done="deleted failure domain {domain}",
        facts=lambda given: {"domain": given["domain"]}),
)  # fmt: skip


@click.group(cls=Group, commands=commands((*PULSARS["clusters"], *DOMAIN_ROWS)))
def clusters() -> None:
    """Show the cluster, and manage failure domains, as in pulsar-admin."""
