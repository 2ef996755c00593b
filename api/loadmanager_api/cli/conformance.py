"""`loadmanager conformance`: tries a service in any language against the contract `docs/sidecar.md`."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from loadmanager_api.cli.client import EXIT_REFUSED, Failed
from loadmanager_api.cli.command_group import with_nearest
from loadmanager_api.cli.printing import echo

if TYPE_CHECKING:
    from loadmanager.sidecar.conformance.runner import Check, Result
    from loadmanager.sidecar.conformance.stage import Options

NAMESPACE = "demo/counters"


@click.command(context_settings={"ignore_unknown_options": False})
@click.option(
    "--probe", metavar="URL",
    help="URL that the service answers with 200 if it serves {key}, such as demo%2Fcounters%2Fapples; "
    "{name} is the key without its namespace, {http} the service's own URL.",
)  # fmt: skip
@click.option("--slow", metavar="URL", help="As --probe, of a request that takes at least a second.")
@click.option("--namespace", metavar="TENANT/NS", default=NAMESPACE, show_default=True, help="Namespace of the keys.")
@click.option("--skip", metavar="CHECK", multiple=True, help="Leave this check out; repeatable.")
@click.option("--only", metavar="CHECK", multiple=True, help="Run this check; repeatable.  [default: all]")
@click.option("--list", "listing", is_flag=True, help="Show the checks, and run none.")
@click.option("--json", "for_machines", is_flag=True, help="Print all results as one JSON document, at the end.")
@click.option(
    "--start-timeout", "start_s", metavar="SECONDS", type=click.FloatRange(min=1), default=60, show_default=True,
    help="Time in which the command must attach.",
)  # fmt: skip
@click.option(
    "--timeout", "patience_s", metavar="SECONDS", type=click.FloatRange(min=1), default=15, show_default=True,
    help="Time limit for every other expected event.",
)  # fmt: skip
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def conformance(
    probe: str | None,
    slow: str | None,
    namespace: str,
    skip: tuple[str, ...],
    only: tuple[str, ...],
    listing: bool,
    for_machines: bool,
    start_s: float,
    patience_s: float,
    command: tuple[str, ...],
) -> None:
    """Try a service against docs/sidecar.md: play sidecar and cluster to it.

    COMMAND starts the service, and comes after `--`. Exit code 1: it failed a check.
    """
    checks = _chosen(only, skip)
    if listing:
        _list(checks, for_machines)
        return
    if not command:
        raise click.UsageError("give the command that starts the service after --")
    if probe is None or not any(part in probe for part in ("{key}", "{name}")):
        raise click.UsageError("give --probe a URL with {key} or {name} in it")
    from loadmanager.sidecar.conformance.stage import Options
    from statechannel.errors import InvalidName
    from statechannel.law.bundle import check_namespace

    try:
        options = Options(command, probe, check_namespace(namespace), slow, start_s, patience_s)
        results = asyncio.run(
            _show(_results(options, checks, skip), for_machines, max(len(each.name) for each in checks))
        )
    except (InvalidName, OSError) as error:
        raise Failed(str(error)) from None
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None
    if any(result.outcome == "failed" for result in results):
        raise SystemExit(EXIT_REFUSED)


def _chosen(only: Sequence[str], skip: Sequence[str]) -> list[Check]:
    from loadmanager.sidecar.conformance.checks import CHECKS

    names = [check.name for check in CHECKS]
    for name in (*only, *skip):
        if name not in names:
            raise click.UsageError(with_nearest(f"there is no check {name!r}", name, names))
    return [check for check in CHECKS if not only or check.name in only]


def _list(checks: Sequence[Check], for_machines: bool) -> None:
    if for_machines:
        echo(json.dumps([{"name": check.name, "promise": check.promise} for check in checks], indent=2))
        return
    width = max(len(check.name) for check in checks)
    for check in checks:
        echo(f"{check.name:<{width}}  {check.promise}")


def _results(options: Options, checks: Sequence[Check], skip: Sequence[str]) -> AsyncGenerator[Result]:
    import socket
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from loadmanager.errors import needs_extra
    from loadmanager.sidecar.conformance.played_sidecar import Application
    from loadmanager.sidecar.conformance.runner import conform
    from loadmanager.sidecar.sidecar import Sessions
    from loadmanager.sidecar.wire import Secret

    with needs_extra("api", "the conformance suite"):
        from loadmanager_api.sidecar import application, served

    def serve(
        sessions: Sessions, secret: Secret, around: Callable[[Application], Application], listening: socket.socket
    ) -> AbstractAsyncContextManager[None]:
        return served(around(application(sessions, secret)), listening)

    return conform(options, serve, checks, skip)


async def _show(results: AsyncGenerator[Result], for_machines: bool, width: int) -> list[Result]:
    """Print each result when it is there. SIGTERM cancels it: the service is ended, too."""
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    found: list[Result] = []
    async with aclosing(results):
        async for result in results:
            found.append(result)
            if not for_machines:
                _show_one(result, width)
    if for_machines:
        echo(json.dumps([asdict(result) for result in found], indent=2))
        return found
    counts = [
        f"{sum(each.outcome == outcome for each in found)} {outcome}" for outcome in ("passed", "failed", "skipped")
    ]
    echo(f"\n{', '.join(counts)}")
    return found


def _show_one(result: Result, width: int) -> None:
    line = f"{result.name:<{width}}  {result.outcome:<7}"
    echo(f"{line}  {result.why or f'{result.took_s:.1f} s'}")
    if result.outcome == "failed":
        margin = " " * (width + 2)
        for head, said in (("promise", [result.promise]), ("did", result.did), ("expected", [result.expected]),
                           ("got", [result.got])):  # fmt: skip
            for each in said:
                echo(f"{margin}{head:<8}  {each}")
                head = ""
