"""Names in the cluster, for shell completion and near matches; asked with a short time-out. Failures are silent."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import click
from click.shell_completion import CompletionItem

from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.command_group import with_nearest
from loadmanager_api.cli.contexts import resolved
from loadmanager_api.cli.remote import Remote, Typed

TIMEOUT_S = 0.8
"""Short, because the user waits for it."""
SUGGESTIONS = 200
_SAFE = "/:"
CREDENTIALS = ("LOADMANAGER_TOKEN", "LOADMANAGER_CLIENT_CERTIFICATE")
"""Variables without which a broker over HTTP is asked at once: the client's own code takes longer to import."""


_ABSENT = re.compile(r"\bno (broker|namespace|bundle) (\S+?)[;,.]?(?:\s|$)")
"""How brokers say that something does not exist."""


def brokers(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Names of registered brokers, and of those that are gone but still hold something."""
    return _beginning(broker_names(_remote(ctx)), incomplete)


def namespaces(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """`tenant/namespace`: those of the tenant once it is typed, before that all."""
    return _beginning(namespace_names(_remote(ctx), incomplete), incomplete)


def bundles(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Bundles of the namespace that is typed, and namespaces before one is."""
    if incomplete.count("/") < 2:
        return _followed_by_slash(ctx, incomplete)
    return _beginning(bundle_names(_remote(ctx), incomplete.rpartition("/")[0]), incomplete)


def topics(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Topics that were created, and hottest keys of the asked broker, with their domain if one is typed."""
    domain, full, short = incomplete.rpartition("://")
    if short.count("/") < 2:
        return _followed_by_slash(ctx, incomplete, domain + full)
    namespace = "/".join(short.split("/")[:2])
    found = _ask(_remote(ctx), f"/admin/v2/{domain or 'persistent'}/{quote(namespace)}") or ()
    return _beginning((each if full else each.partition("://")[2] for each in found), incomplete)


def groups(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Consumer groups that brokers coordinate."""
    found = _ask(_remote(ctx), "/v1/groups?coordinated=true") or ()
    return _beginning((each["group"] for each in found), incomplete)


def policies(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Names of policies, of the kind that was typed before."""
    found = _ask(_remote(ctx), f"/v1/policies?limit={SUGGESTIONS}&kind={ctx.params.get('kind') or ''}") or {}
    return _beginning((each["name"] for each in found.get("policies", ())), incomplete)


def _followed_by_slash(ctx: click.Context, incomplete: str, domain: str = "") -> list[CompletionItem]:
    found = namespaces(ctx, incomplete.removeprefix(domain))
    return [CompletionItem(f"{domain}{item.value}/") for item in found]


def broker_names(remote: Remote) -> list[str]:
    """Names of registered brokers, and of those that are gone but still hold something."""
    return [broker["broker"] for broker in _ask(remote, "/v1/brokers") or ()]


def namespace_names(remote: Remote, beginning: str = "") -> list[str]:
    """Namespaces whose tenant is at the beginning of what is typed; not all of a great cluster."""
    tenant, slash, _ = beginning.partition("/")
    tenants = [tenant] if slash else [t for t in _ask(remote, "/admin/v2/tenants") or () if t.startswith(tenant)]
    found: list[str] = []
    for each in tenants[:SUGGESTIONS]:
        answer = _ask(remote, f"/admin/v2/namespaces/{quote(each)}")
        if answer is None:
            break
        found += answer
        if len(found) >= SUGGESTIONS:
            break
    return found


def bundle_names(remote: Remote, namespace: str) -> list[str]:
    """Bundles of the namespace, the first ones."""
    page = _ask(remote, f"/v1/bundles?limit={SUGGESTIONS}&namespace={quote(namespace)}")
    return [bundle["bundle"] for bundle in (page or {}).get("bundles", ())]


def with_near_names(remote: Remote, error: Failed) -> Failed:
    """The refusal, with the names that are nearest to the one that is said not to be there."""
    absent = _ABSENT.search(error.message)
    if absent is None or error.status is None:
        return error
    kind, name = absent.groups()
    match kind:
        case "broker":
            known = broker_names(remote)
        case "namespace":
            known = namespace_names(remote)
        case _:
            known = bundle_names(remote, name.rpartition("/")[0])
    return type(error)(with_nearest(error.message, name, known), error.status)


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)][:SUGGESTIONS]


def _remote(ctx: click.Context) -> Remote:
    """The options of the line, before or after the command's name; a remote without addresses if they are unusable."""
    typed = Typed()
    levels = [ctx, *([ctx.parent] if ctx.parent else []), ctx.find_root()]
    for level in reversed(levels):
        own = {name: level.params.get(name) for name in Typed.__struct_fields__}
        typed = Typed(**own).over(typed)
    try:
        return resolved(typed)
    except click.ClickException:
        return Remote(admin_urls=[""])


def _ask(remote: Remote, path: str) -> Any:
    """The parsed answer of the first broker that answers, None if none does in time."""
    until_s = time.monotonic() + TIMEOUT_S
    for url in remote.admin_urls:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not url.startswith(("http://", "https://")):
            break
        try:
            return _answer(remote, url, path, left_s)
        except (OSError, ValueError):  # refused, too late, no JSON
            continue
    return None


def _answer(remote: Remote, url: str, path: str, timeout_s: float) -> Any:
    import os
    from urllib.request import Request, urlopen  # quicker to import than the client of the commands themselves

    from loadmanager.client.redirection import CLUSTER_HEADER
    from loadmanager.errors import LoadManagerError

    cluster = {CLUSTER_HEADER: remote.pinned.cluster} if remote.pinned.cluster else {}
    asked, tls = Request(url + quote(path, safe=_SAFE + "?&="), headers=cluster, method="GET"), None
    variables = os.environ if remote.variables is None else remote.variables
    if any(name.startswith(CREDENTIALS) for name in variables) or url.startswith("https:"):
        from loadmanager.client.cluster import WHO, Pin
        from loadmanager.client.credentials import Credentials

        try:
            credentials = Credentials.of_environment(variables)
            shown, tls = credentials.headers(url), credentials.context()
            if shown:  # they go to no broker that has not named its cluster without them
                with urlopen(Request(url + WHO, headers=cluster), timeout=timeout_s, context=tls) as answer:
                    Pin(remote.pinned.cluster).named({} if answer.geturl() != url + WHO else answer.headers, url)
            asked.unredirected_hdrs.update(shown)
        except LoadManagerError as error:
            raise ValueError(str(error)) from None
    with urlopen(asked, timeout=timeout_s, context=tls) as answer:
        return json.load(answer)
