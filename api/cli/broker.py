"""`loadmanager broker`: runs one broker until SIGTERM or SIGINT, with the service's `BundleHost` or an empty one.

Whatever keeps it from starting is told in one line, with the address, on stderr; exit code 1.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
from typing import Any

import click

from api.cli.client import Failed

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command()
@click.option("--cluster", help="Name of the cluster; tied to its log for ever.  [default: standalone]")
@click.option(
    "--listen", metavar="HOST:PORT", help="Where the doors are; port 0 takes a free one.  [default: --advertised]"
)
@click.option("--advertised", metavar="HOST:PORT", help="By which the others know this broker.  [default: --listen]")
@click.option(
    "--log", metavar="ADDRESS", help="sqlite:FILE or kafka://host:port[,…].  [default: sqlite:loadmanager.db]"
)
@click.option(
    "--coordination", metavar="ADDRESS", help="sqlite:FILE or zookeeper://host:port[,…].  [default: as --log]"
)
@click.option(
    "--host", "host_name", metavar="MODULE:FACTORY", help="Makes the BundleHost; without it, one that does nothing."
)
@click.option(
    "--url", "urls", multiple=True, metavar="PROTOCOL=URL", help="Where clients reach the service; may be repeated."
)
@click.option("--development", is_flag=True, default=None, help="Accept a Kafka without replication.")
@click.option("--insecure", is_flag=True, default=None, help="Listen where other machines reach it.")
@click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Any other setting; may be repeated.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def broker(
    listen: str | None, host_name: str | None, urls: tuple[str, ...], more: tuple[str, ...], verbose: bool, **given: Any
) -> None:
    """Run a broker process. Settings also come from the environment (LOADMANAGER_…); /v1/settings shows them all."""
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    values = {name: value for name, value in given.items() if value is not None}
    if listen is not None:
        values.setdefault("advertised", listen)
    settings = _settings({**values, **_pairs(more, "--set")})
    host = _host(host_name) if host_name else Idle()
    raise SystemExit(_run(settings, host, dict(_pairs(urls, "--url")), listen))


class Idle:
    """A host that takes every bundle and does nothing with it."""

    def prepare(self, bundle: object) -> None:
        """Nothing to warm up."""

    def acquire(self, bundle: object, token: object, hand_off: bytes | None) -> None:
        """Taken."""

    def release(self, bundle: object, to: object) -> None:
        """Given away."""

    def abandon(self, bundle: object) -> None:
        """Lost."""

    def load(self) -> dict[Any, Any]:
        """Nothing costs anything."""
        return {}


def _pairs(given: tuple[str, ...], option: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {pair}: write name=value")
        try:
            pairs[name] = json.loads(value) if value.startswith("{") else value
        except ValueError as error:
            raise click.UsageError(f"{option} {pair}: the value is no JSON ({error})") from None
    return pairs


def _settings(values: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    from loadmanager.settings import Settings

    try:
        return Settings(**values)
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in e['loc']) or 'settings'}: {e['msg']}" for e in error.errors()]
        raise click.UsageError("; ".join(lines)) from None


def _host(name: str) -> Any:
    module, colon, factory = name.partition(":")
    if not colon:
        raise click.UsageError(f"--host {name}: write module:factory")
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the service's module is where one stands
    try:
        make = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        raise Failed(f"--host {name}: {error}") from None
    return make()


def _run(settings: Any, host: Any, urls: dict[str, str], listen: str | None) -> int:
    from api.server import attach, check_reach
    from loadmanager.embedding.broker import Broker
    from statechannel.errors import StateChannelError

    try:
        check_reach(listen or settings.advertised, insecure=settings.insecure)
        member = Broker(host, settings, urls=urls, door=attach, bind=listen)
        asyncio.run(_live(member, host))
    except (StateChannelError, OSError, ValueError) as error:
        raise Failed(_line(settings, listen, error)) from None
    return 0


def _line(settings: Any, listen: str | None, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno and error.filename is None:
        return f"cannot listen on {listen or settings.advertised}: {os.strerror(error.errno)}"
    return " ".join(str(error).split())


async def _live(member: Any, host: Any) -> None:
    """From the start to the end of one broker. The first signal ends it gracefully, the second one at once."""
    stopping = asyncio.Event()

    def stop(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    attached = getattr(host, "attached", None)
    if attached is not None:
        attached(member)
    await _first(member.start(), stopping.wait())
    if not stopping.is_set():
        click.echo(f"broker {member.name} is ready", err=True)
        await _first(member.ended(), stopping.wait())
    await member.stop()
    await member.ended()


async def _first(*works: Any) -> None:
    """Until one of them is done; the others are cancelled. Raises what the first one raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
