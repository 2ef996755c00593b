"""`loadmanager broker` runs one broker until SIGTERM or SIGINT, with the service's `BundleHost` or an empty one;
`loadmanager sidecar` one beside a service in any language (`docs/sidecar.md`).

If it cannot start, it prints the cause in one line, with the address, on stderr; exit code 1.

The log of a broker process is on standard error: lines for people, or one JSON object a line. All code logs through
`logging`, our libraries too; one formatter renders everything. Fields come from the context in which a line was logged.
Every line has broker and incarnation. Hooks add bundle, also to the service's own lines; rounds of balancing add cause,
requests add principal, hooks and rounds add trace if traces are on. No line has secrets or terminal control characters.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import structlog

from loadmanager.broker.hooks import at_once
from loadmanager.diagnostics.redaction import redact
from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.configuring import pairs, settings_of, settings_options
from loadmanager_api.cli.printing import echo, one_line, visible
from loadmanager_api.cli.remote import DEFAULT_URL

if TYPE_CHECKING:
    from loadmanager.settings import Settings

FIELDS = ("broker", "incarnation", "bundle", "cause", "principal", "trace")
"""Fields that lines of ours may have besides timestamp, level, logger, event and exception, in this order."""


def log_to(stream: TextIO, form: str, *, verbose: bool) -> None:
    """Write the process's log to this stream, in the form `console` or `json`, until this is called again."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    if not verbose:  # it logs each attempt to connect; our own adapter logs what matters
        logging.getLogger("kazoo").setLevel(logging.ERROR)


def formatter(form: str) -> logging.Formatter:
    """The formatter for `console` or `json`."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _hidden,
            _json if form == "json" else _console,
        ],
    )


def _hidden(_logger: object, _method: str, event: Any) -> Any:
    return redact(dict(event))


def _json(_logger: object, _method: str, event: Any) -> str:
    return json.dumps(dict(event), default=str)


def _console(_logger: object, _method: str, event: Any) -> str:
    """One line, with the fields in brackets; an exception follows on lines of its own."""
    fields = " ".join(f"{name}={event[name]}" for name in FIELDS if name in event)
    line = f"{event['timestamp']} {event['level'].upper()} {event['logger']}: {event['event']}"
    exception = f"\n{visible(event['exception'])}" if "exception" in event else ""
    return one_line(f"{line} [{fields}]" if fields else line) + exception


GC_THRESHOLDS = (2_000, 50, 200)
"""Thresholds for a busy broker: little garbage in cycles, many tasks and futures.

With Python's default (700, 10, 10), collections took some 5 % of an assignment. The first two are small enough that no
collection holds the interpreter for more than some milliseconds: connections over TLS are expensive garbage.
"""

ADDRESS = DEFAULT_URL.removeprefix("http://")
"""The default address of a broker: the other commands look for one there."""

HOOKS = ("prepare", "acquire", "release", "abandon", "load")


@click.command()
@settings_options
@click.option(
    "--listen",
    metavar="[HOST]:PORT",
    help="Address of the endpoints; without a host all of IPv4 and IPv6, port 0 a free one.  [default: --advertised]",
)
@click.option(
    "--host",
    "host_name",
    metavar="MODULE:FACTORY",
    help="Function that makes the BundleHost; without it, the broker gets a host that does nothing.",
)
@click.option(
    "--url", "urls", multiple=True, metavar="PROTOCOL=URL", help="URL where clients reach the service; repeatable."
)
@click.option("-v", "--verbose", is_flag=True, help="Write debug messages to the log, too.")
def broker(
    listen: str | None, host_name: str | None, urls: tuple[str, ...], more: tuple[str, ...], verbose: bool, **given: Any
) -> None:
    """Run a broker process. Settings also come from the environment (LOADMANAGER_…); /v1/settings shows them all."""
    settings = _settings(given, more, listen, verbose=verbose)
    host = _host(host_name, settings) if host_name else Idle()
    _run(settings, host, pairs(urls, "--url"), listen)


def _settings(given: dict[str, Any], more: tuple[str, ...], listen: str | None, *, verbose: bool) -> Settings:
    """The settings of a broker process, whose log is written as they say from now on."""
    log_to(sys.stderr, "console", verbose=verbose)
    settings = settings_of(given, more)
    log_to(sys.stderr, settings.log_format, verbose=verbose)
    if "advertised" not in settings.model_fields_set:  # nor in the environment
        return settings.model_copy(update={"advertised": listen or ADDRESS})
    return settings


class Idle:
    """A host that takes every bundle and does nothing with it."""

    @at_once
    def prepare(self, bundle: object) -> None:
        """Nothing to warm up."""

    @at_once
    def acquire(self, bundle: object, token: object, hand_off: bytes | None) -> None:
        """Taken."""

    @at_once
    def release(self, bundle: object, to: object) -> None:
        """Given away."""

    @at_once
    def abandon(self, bundle: object) -> None:
        """Lost."""

    @at_once
    def load(self) -> dict[Any, Any]:
        """Nothing costs anything."""
        return {}


def _host(name: str, settings: Any) -> Any:
    module, colon, factory = name.partition(":")
    if not colon:
        raise click.UsageError(f"--host {name}: write module:factory")
    sys.path.insert(0, os.getcwd())  # as `python -m` does: the service's module is in the working directory
    try:
        make = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        raise Failed(f"--host {name}: {error}") from None
    try:
        host = make(settings) if _wants_settings(make) else make()
    except Exception as error:
        logging.getLogger("loadmanager").debug("--host %s", name, exc_info=True)
        raise Failed(f"--host {name}: calling it raised {type(error).__name__}: {error}") from None
    missing = [hook for hook in HOOKS if not callable(getattr(host, hook, None))]
    if missing:
        kind = "None" if host is None else f"a {type(host).__name__}"
        raise Failed(
            f"--host {name}: it returned {kind} without {', '.join(missing)}; see loadmanager.model.host.BundleHost"
        )
    return host


def _wants_settings(factory: Any) -> bool:
    """Whether it has a parameter that must be given."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some functions in C say nothing
        return False
    return any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)


def _run(settings: Settings, host: Any, urls: dict[str, str], listen: str | None) -> None:
    from loadmanager.embedding.broker import Broker
    from loadmanager.errors import needs_extra

    with needs_extra("api", "a broker of its own"):
        from loadmanager_api.server import attach

    with _starting(settings, listen):
        member = Broker(host, settings, urls=urls, endpoint=partial(attach, loaded=gc.freeze), bind=listen)
        gc.freeze()  # modules live as long as the process: scanning them is half of a collection's cost
        asyncio.run(_live(member, host))


@contextmanager
def _starting(settings: Settings, listen: str | None) -> Generator[None]:
    """Within it a broker is started and runs. Raises Failed with the cause in one line."""
    from loadmanager.embedding.endpoints import parse_address
    from loadmanager_api.server import check_reach
    from statechannel.errors import Error

    gc.set_threshold(*GC_THRESHOLDS)
    try:
        parse_address(settings.advertised)
        check_reach(listen or settings.advertised, settings)
        yield
    except (Error, OSError, ValueError) as error:
        says = error.strerror if isinstance(error, OSError) and error.filename is None else None
        raise Failed(" ".join((says or str(error)).split())) from None


async def _live(member: Any, host: Any) -> None:
    """Run one broker from start to end. The first signal ends it gracefully, the second one at once."""
    from loadmanager.embedding.broker import live

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

    def say_ready() -> None:
        url = member.node.registration.admin_url
        echo(f"broker {member.name} is ready: {url} (the dashboard, in a browser)", err=True)

    await live(member, stopping, say_ready)


CONTROL = "127.0.0.1:7070"
SESSION_TIMEOUT_S = 5.0


@click.command()
@settings_options
@click.option("--listen", metavar="[HOST]:PORT", help="As of `loadmanager broker`.  [default: --advertised]")
@click.option(
    "--url", "urls", multiple=True, metavar="PROTOCOL=URL",
    help="URL where clients reach the service, if it names none itself; repeatable.",
)  # fmt: skip
@click.option(
    "--control", metavar="HOST:PORT", default=CONTROL, show_default=True,
    help="Loopback address where the service asks this sidecar.",
)  # fmt: skip
@click.option(
    "--secret-file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), required=True,
    help="File with the secret of sidecar and service; created if it does not exist.",
)  # fmt: skip
@click.option(
    "--session-timeout-s", type=click.FloatRange(min=0.5, max=600), default=SESSION_TIMEOUT_S, show_default=True,
    help="Seconds without a poll after which a service counts as gone.",
)  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Write debug messages to the log, too.")
def sidecar(
    listen: str | None,
    urls: tuple[str, ...],
    control: str,
    secret_file: Path,
    session_timeout_s: float,
    more: tuple[str, ...],
    verbose: bool,
    **given: Any,
) -> None:
    """Run a broker beside a service in another language.

    The service attaches over HTTP, and gets hooks and leases; see docs/sidecar.md. Settings also come from the
    environment (LOADMANAGER_…).
    """
    settings, named = _settings(given, more, listen, verbose=verbose), pairs(urls, "--url")
    from loadmanager.embedding.broker import leaving_on_signal
    from loadmanager.errors import needs_extra
    from loadmanager.sidecar.sidecar import Sidecar
    from loadmanager.sidecar.wire import Secret

    with needs_extra("api", "a sidecar"):
        from loadmanager_api.server import attach
        from loadmanager_api.sidecar import absent, application, listen_on_loopback, served

    async def live() -> None:
        secret = Secret.of(secret_file)
        listening = listen_on_loopback(control)
        address = listen or settings.advertised
        running = Sidecar(
            settings, secret, session_timeout_s=session_timeout_s, urls=named, bind=listen, endpoint=attach,
            absent=lambda: absent(address, settings),
        )  # fmt: skip
        with leaving_on_signal(running.stop, asyncio.get_running_loop()):
            async with served(application(running, secret), listening):
                host, port = listening.getsockname()[:2]
                echo(f"a service may attach at http://{f'[{host}]' if ':' in host else host}:{port}", err=True)
                await running.run()

    with _starting(settings, listen):
        gc.freeze()
        asyncio.run(live())
