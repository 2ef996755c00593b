"""A broker's settings on the command line: `--cluster`, `--log`, `--set NAME=VALUE` …

Settings that are not given come from the environment.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from loadmanager_api.cli.client import Failed
from loadmanager_api.cli.options import with_options

if TYPE_CHECKING:
    from loadmanager.settings import Settings
    from statechannel.law.agreement import Agreement

F = TypeVar("F", bound=Callable[..., Any])

_PREFIX = "LOADMANAGER_"
_OPTIONS = (
    click.option("--cluster", help="Name of the cluster; its log keeps this name forever.  [default: standalone]"),
    click.option("--advertised", metavar="HOST:PORT", help="Address by which the other brokers know this broker."),
    click.option(
        "--log", metavar="ADDRESS", help="Log: sqlite:FILE or kafka://host:port[,…].  [default: sqlite:loadmanager.db]"
    ),
    click.option(
        "--coordination",
        metavar="ADDRESS",
        help="Coordination: sqlite:FILE or zookeeper://host:port[,…].  [default: beside a SQLite --log]",
    ),
    click.option(
        "--development", is_flag=True, default=None, help="Accept a Kafka without replication, and an open ZooKeeper."
    ),
    click.option(
        "--insecure",
        is_flag=True,
        default=None,
        help="Allow an address that others reach without TLS and log-in, and an open ZooKeeper.",
    ),
    click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Any other setting; repeatable."),
)


def settings_options(command: F) -> F:
    """Adds the options; the command passes their values to `settings_of`."""
    return with_options(command, *_OPTIONS)


def settings_of(given: Mapping[str, Any], more: tuple[str, ...]) -> Settings:
    """The given settings (None: not given), over those of the environment. Raises UsageError."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from loadmanager.errors import Invalid
    from loadmanager.settings import Settings
    from loadmanager.settings.by_name import wrong
    from loadmanager.settings.removed import check_settable

    values = {name: value for name, value in given.items() if value is not None}
    by_set = pairs(more, "--set")
    try:
        check_settable(by_set)
        return Settings(**{**values, **by_set})
    except Invalid as error:
        raise click.UsageError(str(error)) from None
    except SettingsError as error:
        raise click.UsageError(_unparsed(str(error))) from None
    except ValidationError as error:
        raise click.UsageError("; ".join(wrong(e["type"], e["loc"], e["msg"]) for e in error.errors())) from None


def agreement_with(settings: Settings) -> Callable[[Agreement, str], Agreement]:
    """A function that makes the new agreement: values given in these settings, the others as before.

    It raises Failed where the two do not fit.
    """
    import msgspec

    def wanted(before: Agreement, root: str) -> Agreement:
        told = {name: getattr(settings, name) for name in settings.model_fields_set}
        kept = {"proof_validity_s": before.proof_validity_s, "clock_drift": before.clock_drift}
        try:
            chosen = settings_of(kept | told, ())
        except click.UsageError as error:
            raise Failed(error.message) from None
        return msgspec.structs.replace(
            before,
            root=root,
            proof_validity_s=chosen.proof_validity_s,
            clock_drift=chosen.clock_drift,
            margin_s=chosen.margin_s,
        )

    return wanted


def of_the_old_side() -> dict[str, Any]:
    """Client settings for a migration's old stores, where they differ from the new ones'. Raises UsageError."""
    found: dict[str, Any] = {}
    for name in ("kafka", "zookeeper"):
        variable = f"{_PREFIX}FROM_{name.upper()}"
        try:
            found |= {name: json.loads(os.environ[variable])} if variable in os.environ else {}
        except ValueError:
            raise click.UsageError(_no_json(variable)) from None
    return found


def _check_no_secret(option: str, name: str, value: Any) -> None:
    """Refuse secrets: everybody on this machine may see a command line. Raises UsageError."""
    from loadmanager.diagnostics.redaction import SECRET_NAME

    names = list(cast("dict[str, Any]", value)) if isinstance(value, dict) else []
    secret = next((each for each in names if SECRET_NAME.search(each)), None)
    if secret is not None:
        raise click.UsageError(
            f"{option} {name}: {secret} may be secret, and everybody on this machine can see a command line; "
            f"give {name} in the environment instead, as {_PREFIX}{'FROM_' * (option == '--from-set')}{name.upper()}"
        )


def _unparsed(message: str) -> str:
    """Names the environment variable that is not JSON, without its value, which may be secret."""
    found = re.search(r'field "(\w+)"', message)
    return _no_json(f"{_PREFIX}{found[1].upper()}" if found else f"a {_PREFIX}… variable")


def _no_json(variable: str) -> str:
    return f'{variable} is not valid JSON; write {variable}=\'{{"name": "value"}}\''


def pairs(given: tuple[str, ...], option: str) -> dict[str, Any]:
    """`name=value` each; a value that begins with a brace is JSON. Raises UsageError."""
    found: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {pair}: write name=value")
        try:
            found[name] = json.loads(value) if value.startswith("{") else value
        except ValueError as error:
            raise click.UsageError(f"{option} {name}: the value is not valid JSON ({error})") from None
        _check_no_secret(option, name, found[name])
    return found
