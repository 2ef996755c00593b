"""`loadmanager check`: checks whether a broker with these settings would run well. Changes nothing.

`loadmanager health`: what is wrong in a running cluster, as the asked broker sees it.

`loadmanager doctor`: a support bundle of a running cluster, without secrets.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from msgspec.structs import asdict

from loadmanager_api.cli.client import EXIT_REFUSED, Failed, NotNow, given_credentials, run
from loadmanager_api.cli.configuring import settings_of, settings_options
from loadmanager_api.cli.options import prints, reaches
from loadmanager_api.cli.printing import age, cell, echo, hanging, show, show_answer
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Request, commands

if TYPE_CHECKING:
    from loadmanager.diagnostics.support_bundle import Collected
    from loadmanager.settings import Settings
    from statechannel.audit import Finding


@click.command()
@settings_options
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="Seconds to wait for each store.  [default: 20]",
)
@prints
def check(remote: Remote, timeout_s: float | None, more: tuple[str, ...], **given: Any) -> None:
    """Check Kafka and ZooKeeper, or the SQLite files, as a broker with these settings would find them.

    Give the options of the broker. The command creates and changes nothing. Exit code 1: there are errors.
    """
    from loadmanager.broker.wiring import auditors
    from loadmanager.diagnostics.check import AUDIT_TIMEOUT_S, check, worst
    from statechannel.audit import Severity

    settings = settings_of(given, more)
    try:
        looking = auditors(settings)
    except ValueError as error:
        raise Failed(str(error)) from None
    with quiet_clients():
        findings = run(check(settings, looking, timeout_s or AUDIT_TIMEOUT_S))
    _show(remote, findings)
    if worst(findings) is Severity.ERROR:
        raise SystemExit(EXIT_REFUSED)


@contextmanager
def quiet_clients() -> Generator[None]:
    """Silence the stores' clients: the findings say what they would log."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.setLevel(before)


def _show(remote: Remote, findings: Sequence[Finding]) -> None:
    if not remote.for_people:
        show_answer(remote, [{**asdict(finding), "severity": finding.severity.value} for finding in findings])
        return
    width = max((len(finding.subject) for finding in findings), default=0)
    margin = " " * (7 + 2 + width + 2)
    for finding in findings:
        echo(hanging(f"{finding.severity.value:<7}  {finding.subject:<{width}}  ", margin, finding.found))
        if finding.advice:
            echo(hanging(f"{margin}-> ", f"{margin}   ", finding.advice))
    counts = Counter(finding.severity.value for finding in findings)
    errors, warnings = (f"{counts[each]} {each}{'' if counts[each] == 1 else 's'}" for each in ("error", "warning"))
    echo(f"\n{errors}, {warnings}, {counts['ok']} ok")


def _show_health(remote: Remote, found: list[dict[str, Any]]) -> None:
    rows = [
        (
            each["severity"],
            each["found"],
            each["since_ms"] and f"{age(each['since_ms'])} ago",
            each["advice"],
            each["why"],
        )
        for each in found
    ]
    show(remote, found, ("severity", "what", "since", "remedy", "why"), rows, empty="nothing is wrong", wide=1)
    if any(each["severity"] == "error" for each in found):
        raise SystemExit(EXIT_REFUSED)


(health,) = commands([
    Request("health", "GET /v1/health",
        "Show what is wrong in the cluster, and what to do about it: errors, then warnings, as the asked broker sees "
        "them. -o wide adds the reasons. Exit code 1: there are errors.", view=_show_health),
])  # fmt: skip


@click.command()
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.tar.gz",
    help="File to write; it must not exist.  [default: loadmanager-CLUSTER-TIME.tar.gz]",
)
@click.option(
    "--check/--no-check",
    "checking",
    default=True,
    help="Include what `loadmanager check` finds from here.  [default: check]",
)
@click.option("--log", metavar="ADDRESS", help="Log to check.  [env LOADMANAGER_LOG]")
@click.option("--coordination", metavar="ADDRESS", help="Coordination to check.  [env LOADMANAGER_COORDINATION]")
@reaches
def doctor(
    remote: Remote,
    file: Path | None,
    checking: bool,
    log: str | None,
    coordination: str | None,
) -> None:
    """Collect the state of every broker into one file, to inspect or to send to support.

    The file contains no secrets: *** replaces values for Kafka and ZooKeeper, properties, users and passwords in URLs.
    A broker that does not answer is listed as missing. The check looks at the stores that you name, from this machine,
    with LOADMANAGER_KAFKA and LOADMANAGER_ZOOKEEPER of this environment, and takes its other settings from the brokers.
    It never connects to store addresses that brokers show.
    """
    at_ms = int(time.time() * 1000)
    local = settings_of({"log": log, "coordination": coordination}, ())
    collected, cluster = run(_collect(remote, local, checking))
    from loadmanager.diagnostics.redaction import redact_text
    from loadmanager.diagnostics.support_bundle import default_name, write_archive

    path = file or Path(default_name(cluster, at_ms))
    try:
        write_archive(path, collected, at_ms, redact_text(remote.admin_url))
    except FileExistsError:
        raise Failed(f"{path} exists already: choose another name with -o") from None
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from None
    _tell(path, collected)


def _tell(path: Path, collected: Collected) -> None:
    for name, content in sorted(collected.files.items()):
        echo(f"{len(content):>10,}  {name}")
    for lack in collected.missing:
        echo(f"{'missing':>10}  {lack.name}: {cell(lack.reason)}")
    echo(f"\n{path}: {len(collected.files)} files, {path.stat().st_size:,} bytes, only you may read it")


async def _collect(remote: Remote, local: Settings, checking: bool) -> tuple[Collected, str]:
    from aiohttp import InvalidURL

    from loadmanager.diagnostics.redaction import redact_text, secrets_in
    from loadmanager.diagnostics.support_bundle import collect, file_name
    from loadmanager.errors import Unavailable

    known = secrets_in(local.kafka, local.zookeeper)
    unanswered = "no broker was asked"
    for url in list(remote.admin_urls):
        try:
            collected = await collect(url, known, given_credentials(remote), remote.pinned.cluster)
            break
        except InvalidURL:
            raise click.UsageError("that is not a URL; write --admin-url http://host:port") from None
        except Unavailable as error:
            unanswered = redact_text(str(error), known)
    else:
        raise NotNow(f"{unanswered}; start one, or name another with --admin-url")
    settings = _settings_seen(collected)
    if checking and (unknown := _unknown_stores(local)):
        collected.note_missing(
            "check.json", f"name the stores to check, with {unknown}: addresses that a broker shows are not trusted"
        )
    elif checking:
        await _check(collected, settings, local, known)
    return collected, file_name(str(settings.get("cluster", "cluster")))


def _unknown_stores(local: Settings) -> str:
    """The options that are missing to check both stores from here."""
    log, coordination = "--log (or LOADMANAGER_LOG)", "--coordination (or LOADMANAGER_COORDINATION)"
    if "log" not in local.model_fields_set:
        return log if "coordination" in local.model_fields_set else f"{log} and {coordination}"
    return "" if local.log.startswith("sqlite:") or local.coordination is not None else coordination


def _settings_seen(collected: Collected) -> dict[str, Any]:
    for name, content in sorted(collected.files.items()):
        if name.endswith("/settings.json"):
            seen = json.loads(content)
            if isinstance(seen, dict):
                return cast("dict[str, Any]", seen)
    return {}


async def _check(collected: Collected, seen: Mapping[str, Any], local: Settings, known: frozenset[str]) -> None:
    """Findings for a broker with these settings on this machine, at the stores that the caller named."""
    import msgspec
    from pydantic import ValidationError

    from loadmanager.broker.wiring import auditors
    from loadmanager.diagnostics.check import check
    from loadmanager.diagnostics.redaction import redact
    from loadmanager.settings import Settings

    own = {name: getattr(local, name) for name in ("log", "coordination", "kafka", "zookeeper")}
    shared = {name: value for name, value in seen.items() if name in Settings.model_fields}
    try:
        settings = Settings.model_validate({**shared, **own, "properties": {}})
        with quiet_clients():
            findings = await check(settings, auditors(settings))
    except (ValidationError, ValueError) as error:
        collected.note_missing("check.json", str(error))
        return
    collected.keep("check.json", json.dumps(redact(msgspec.to_builtins(findings), known), indent=1))
