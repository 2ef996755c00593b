"""`loadmanager what-if`: what would be decided if something were different. `loadmanager plans preview`: a dry run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.configuring import pairs
from loadmanager_api.cli.echoing import echo
from loadmanager_api.cli.explain import at_option, log_option
from loadmanager_api.cli.explain_showing import clock
from loadmanager_api.cli.names import BROKER, NAMESPACE
from loadmanager_api.cli.options import asks_a_broker, shows
from loadmanager_api.cli.plans import plans
from loadmanager_api.cli.printing import hanging, show_answer
from loadmanager_api.cli.projecting import show_brokers, show_moves
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.what_if_showing import show_projections, show_wish


@click.command("what-if", short_help="Show what a round would decide under other conditions.")
@click.option("--add-brokers", type=click.IntRange(0, 1_000), default=0, metavar="N", help="Number of brokers to add.")
@click.option(
    "--capacity",
    multiple=True,
    metavar="NAME=VALUE",
    help="Capacity of each added broker (cpu=8, …); repeatable.  [default: the median]",
)
@click.option(
    "--remove-broker", "remove", multiple=True, type=BROKER, metavar="BROKER", help="Without this broker; repeatable."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="With this setting; repeatable.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    type=NAMESPACE,
    help="With --times the load of this namespace; repeatable.",
)
@click.option(
    "--times",
    metavar="FACTOR",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="Factor for the load of each --namespace.",
)
@click.option(
    "--policy", multiple=True, metavar="KIND/NAME=JSON", help="With this policy, or without it (`null`); repeatable."
)
@click.option("--rested", is_flag=True, help="As if no bundle had moved lately, so that none has to rest.")
@at_option
@log_option
@asks_a_broker
def what_if(
    remote: Remote,
    add_brokers: int,
    capacity: tuple[str, ...],
    remove: tuple[str, ...],
    settings: tuple[str, ...],
    namespaces: tuple[str, ...],
    times: float,
    policy: tuple[str, ...],
    rested: bool,
    at_ms: int | None,
    log: str | None,
) -> None:
    """Show what a round would decide under other conditions, beside what it decides now. Changes nothing.

    For example: what-if --add-brokers 3; what-if --set balancing_tolerance=tight; what-if --namespace shop/carts
    --times 2; what-if --policy 'isolation/pay={"namespaces": ["pay/.*"], "primary": ["a:.*"]}'.
    """
    wish = {
        "add_brokers": add_brokers,
        "capacity": _numbers(capacity),
        "remove_brokers": list(remove),
        "settings": pairs(settings, "--set"),
        "loads": dict.fromkeys(namespaces, times),
        "policies": _documents(policy),
        "rested": rested,
    }
    if log is not None:
        show_projections(remote, _offline(log, wish, at_ms))
    else:
        show_wish(remote, wish, {"at": None if at_ms is None else str(at_ms)})


@plans.command("preview", short_help="Show what a round would do now: a dry run.")
@shows
def preview(remote: Remote) -> None:
    """Show what a round of balancing would do at this moment. Changes nothing, and proposes nothing."""
    found = run(ask(remote, "GET", "/v1/plan"))
    if not remote.for_people:
        show_answer(remote, found)
        return
    projected = found["projection"]
    echo(f"{found['strategy']} would decide now, {clock(found['at_ms'])}:", bold=True)
    echo(hanging("", "  ", projected["decision"]["reason"]))
    show_moves(projected["decision"])
    show_brokers(projected)


def _offline(log: str, wish: Mapping[str, Any], at_ms: int | None) -> Any:
    from pydantic import ValidationError

    from loadmanager_api.cli.explain_offline import asked
    from loadmanager_api.explain_schemas import WhatIfWish

    try:
        edits = WhatIfWish(**wish).edits()
    except ValidationError as error:
        raise click.UsageError("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())) from None
    return asked(log, (), lambda explainer: explainer.what_if(edits, at_ms))


def _numbers(given: tuple[str, ...]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in pairs(given, "--capacity").items()}
    except ValueError as error:
        raise click.UsageError(f"--capacity: {error}; write cpu=8") from None


def _documents(given: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        key, equals, value = each.partition("=")
        try:
            found[key] = json.loads(value) if equals else None
        except ValueError as error:
            raise click.UsageError(f"--policy {key}: its JSON cannot be read: {error}") from None
        if not equals or not isinstance(found[key], dict | None):
            raise click.UsageError(f"--policy {each}: write KIND/NAME={{…}}, or KIND/NAME=null")
    return found


__all__ = ["plans", "what_if"]
