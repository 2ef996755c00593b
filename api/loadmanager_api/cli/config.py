"""`loadmanager config`: the cluster's settings, and changing those that are live; also as pulsar-admin does."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from loadmanager_api.cli.client import ask, ask_all, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import segment
from loadmanager_api.cli.options import asks_a_broker, changes, shows, since_option, since_query
from loadmanager_api.cli.printing import done, echo, show, show_pairs
from loadmanager_api.cli.remote import Remote

SOURCES = ("cluster", "start", "default")
_AT = "/v1/config"
_PULSARS = "/admin/v2/brokers/configuration"


def _names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from loadmanager.settings import descriptions

    return [name for name in descriptions() if name.startswith(incomplete)]


_the_setting = click.argument("name", shell_complete=_names)


@click.group(cls=Group)
def config() -> None:
    """Show settings and who set them, and change settings while brokers run.

    NAME is our name or Pulsar's; a value is in the unit of that name. docs/settings.md lists all settings.
    """


@config.command("list", short_help="List settings that are not at their defaults.")
@click.option("-a", "--all", "all_", is_flag=True, help="Also list settings at their defaults.")
@click.option("--live", is_flag=True, help="Only settings that can change while brokers run.")
@click.option("--prefix", metavar="TEXT", help="Only settings whose name, ours or Pulsar's, begins so.")
@click.option("--source", type=click.Choice(SOURCES), help="Only values that come from there.")
@shows
def list_(remote: Remote, all_: bool, live: bool, prefix: str | None, source: str | None) -> None:
    """List settings of the asked broker that are not at their defaults."""
    query = {"live": live, "prefix": prefix, "source": source}
    found = run(ask_all(remote, _AT, query))["settings"]
    chosen = [each for each in found if all_ or source or each["source"] != "default" or each["ignored"]]
    rows = [
        (each["name"], _value(each["value"]), each["unit"], each["source"], each["version"] or None, each["author"])
        for each in chosen
    ]
    columns = ("setting", "value", "unit", "from", "version", "by")
    show(remote, chosen, columns, rows, empty="every setting is at its default: --all shows them")
    for each in chosen if remote.for_people else ():
        if each["ignored"]:
            echo(f"{each['name']}: this broker ignores the cluster's value: {each['ignored']}", err=True)


@config.command()
@_the_setting
@shows
def get(remote: Remote, name: str) -> None:
    """Show everything about one setting."""
    found = run(ask(remote, "GET", f"{_AT}/{segment(name)}"))
    pairs: list[tuple[str, object]] = [
        (found["name"], " ".join(filter(None, (_value(found["value"]), found["unit"])))),
        ("means", found["meaning"]),
        ("from", _origin(found)),
        ("default", f"{_value(found['default'])}" + (f" ({found['why']})" if found["why"] else "")),
        ("allowed", ", ".join([found["type"], *found["bounds"]])),
        ("changes", "while brokers run" if found["live"] else "where the broker is started"),
    ]
    pairs += [(theirs, _value(value)) for theirs, value in found["pulsar"].items()]
    if found["ignored"]:
        pairs.append(("ignored", found["ignored"]))
    show_pairs(remote, found, pairs)


@config.command("set", short_help="Change a setting for the whole cluster.")
@_the_setting
@click.argument("value")
@click.option(
    "--version", metavar="N", type=click.IntRange(0), help="Only if the setting still has this version.  [default: any]"
)
@click.option("--reason", default="", help="Reason, for the history.")
@changes
def set_(remote: Remote, name: str, value: str, version: int | None, reason: str) -> None:
    """Change a setting for the whole cluster, while its brokers run."""
    body = {"value": value, "version": version, "reason": reason}
    _tell(remote, run(ask(remote, "PUT", f"{_AT}/{segment(name)}", body=body)))


@config.command(short_help="Leave a setting to each broker again.")
@_the_setting
@click.option(
    "--version", metavar="N", type=click.IntRange(0), help="Only if the setting still has this version.  [default: any]"
)
@click.option("--reason", default="", help="Reason, for the history.")
@changes
def unset(remote: Remote, name: str, version: int | None, reason: str) -> None:
    """Leave a setting to each broker again: the value of its start holds."""
    query = {"version": version, "reason": reason or None}
    _tell(remote, run(ask(remote, "DELETE", f"{_AT}/{segment(name)}", query=query)))


@config.command(short_help="Show who changed a setting, when and why.")
@_the_setting
@since_option
@shows
def history(remote: Remote, name: str, since: int | None) -> None:
    """Show who changed a setting, from what to what, when and why; oldest first."""
    found = run(ask_all(remote, f"{_AT}/{segment(name)}/history", since_query(since)))
    rows = [
        (
            each["version"],
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["at_ms"] / 1000)),
            each["author"],
            "-" if each["old"] is None else _value(each["old"]),
            _value(each["value"]) if each["set"] else "unset",
            each["reason"],
        )
        for each in found
    ]
    show(remote, found, ("version", "when", "by", "old", "new", "reason"), rows, empty=f"{name} was not changed")


def _tell(remote: Remote, found: dict[str, Any]) -> None:
    unit = f" {found['unit']}" if found["unit"] else ""
    done(remote, f"{found['name']} is {_value(found['value'])}{unit} (version {found['version']})", **found)


def _origin(found: dict[str, Any]) -> str:
    match found["source"]:
        case "cluster":
            why = f": {found['reason']}" if found["reason"] else ""
            return f"the cluster, version {found['version']} by {found['author']}{why}"
        case "start":
            return "where the asked broker was started"
        case _:
            return "its default"


def _value(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


# --- as in pulsar-admin


def _pulsar_name(command: Any) -> Any:
    return click.option("-c", "--config", "name", required=True, help="Name of the setting, ours or Pulsar's.")(command)


@click.command("update-dynamic-config", short_help="Do the same as `config set`.")
@_pulsar_name
@click.option("-v", "--value", required=True, help="Value, in the unit of the name.")
@changes
def update_dynamic_config(remote: Remote, name: str, value: str) -> None:
    """Change a setting for the whole cluster, as `config set` does."""
    run(ask(remote, "POST", f"{_PULSARS}/{segment(name)}/{segment(value)}"))
    done(remote, f"{name} is {value}", name=name, value=value)


@click.command("delete-dynamic-config", short_help="Do the same as `config unset`.")
@_pulsar_name
@changes
def delete_dynamic_config(remote: Remote, name: str) -> None:
    """Leave a setting to each broker again, as `config unset` does."""
    run(ask(remote, "DELETE", f"{_PULSARS}/{segment(name)}"))
    done(remote, f"{name} is left to each broker", name=name)


@click.command("get-all-dynamic-config", short_help="Show what the cluster has set, by all names.")
@shows
def get_all_dynamic_config(remote: Remote) -> None:
    """Show what the cluster has set, by our names and Pulsar's."""
    _show_values(remote, "values", "the cluster has set nothing")


@click.command("list-dynamic-config", short_help="List settings that can change while brokers run.")
@asks_a_broker
def list_dynamic_config(remote: Remote) -> None:
    """List settings that can change while brokers run, by our names and Pulsar's."""
    found = run(ask(remote, "GET", _PULSARS))
    show(remote, found, ("setting",), [(name,) for name in found])


@click.command("get-runtime-config", short_help="Show the values of the asked broker, by all names.")
@shows
def get_runtime_config(remote: Remote) -> None:
    """Show the values of the asked broker, by our names and Pulsar's."""
    _show_values(remote, "runtime", "none")


def _show_values(remote: Remote, what: str, empty: str) -> None:
    found = run(ask(remote, "GET", f"{_PULSARS}/{what}"))
    show(remote, found, ("setting", "value"), list(found.items()), empty=empty)


PULSAR_COMMANDS = (
    update_dynamic_config,
    delete_dynamic_config,
    get_all_dynamic_config,
    list_dynamic_config,
    get_runtime_config,
)
