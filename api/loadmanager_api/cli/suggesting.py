"""Names for shell completion, asked of the cluster with a short time-out; failures are silent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from loadmanager_api.cli.options import DEFAULT_URL

TIMEOUT_S = 0.8
"""Short, because the user waits for it."""
SUGGESTIONS = 200
_SAFE = "/:"


def brokers(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Names of registered brokers, and of those that are gone but still hold something."""
    return _beginning((broker["broker"] for broker in _ask(ctx, "/v1/brokers") or ()), incomplete)


def namespaces(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """`tenant/namespace`: those of the tenant once it is typed, before that all."""
    tenant, slash, _ = incomplete.partition("/")
    tenants = [tenant] if slash else [t for t in _ask(ctx, "/admin/v2/tenants") or () if t.startswith(tenant)]
    found: list[str] = []
    for each in tenants[:SUGGESTIONS]:
        answer = _ask(ctx, f"/admin/v2/namespaces/{quote(each)}")
        if answer is None:
            break
        found += answer
        if len(found) >= SUGGESTIONS:
            break
    return _beginning(found, incomplete)


def bundles(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Bundles of the namespace that is typed, and namespaces before one is."""
    if incomplete.count("/") < 2:
        return [CompletionItem(f"{item.value}/") for item in namespaces(ctx, incomplete)]
    namespace = incomplete.rpartition("/")[0]
    page = _ask(ctx, f"/v1/bundles?limit={SUGGESTIONS}&namespace={quote(namespace)}")
    return _beginning((bundle["bundle"] for bundle in (page or {}).get("bundles", ())), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)][:SUGGESTIONS]


def _ask(ctx: click.Context, path: str) -> Any:
    """The parsed answer of the broker that the command line names, None if there is none."""
    from urllib.request import Request, urlopen  # quicker to import than the client of the commands themselves

    url = _admin_url(ctx)
    if not url.startswith(("http://", "https://")):
        return None
    try:
        with urlopen(Request(url + quote(path, safe=_SAFE + "?&="), method="GET"), timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except (OSError, ValueError):  # refused, too late, no JSON
        return None


def _admin_url(ctx: click.Context | None) -> str:
    """What the line says, wherever it says it; else the environment."""
    url = DEFAULT_URL
    while ctx is not None:
        given = ctx.params.get("admin_url")
        if given:
            url = str(given).rstrip("/")
            if ctx.get_parameter_source("admin_url") is ParameterSource.COMMANDLINE:
                break
        ctx = ctx.parent
    return url
