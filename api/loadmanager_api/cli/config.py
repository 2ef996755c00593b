"""`loadmanager config`: the cluster's settings, and changing those that are live; also as pulsar-admin does."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from loadmanager_api.cli.client import ask_all, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.options import shows, since_option
from loadmanager_api.cli.printing import echo, show, show_pairs
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.requests import Request, commands, first, second

SOURCES = ("cluster", "start", "default")
_AT = "/v1/config"


def _names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from loadmanager.settings import descriptions

    return [name for name in descriptions() if name.startswith(incomplete)]


_the_setting = click.argument("name", shell_complete=_names)


def _show(remote: Remote, found: dict[str, Any]) -> None:
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


def _told(found: Mapping[str, Any]) -> str:
    unit = f" {found['unit']}" if found["unit"] else ""
    return f"{found['name']} is {_value(found['value'])}{unit} (version {found['version']})"


_VERSION = click.option(
    "--version", metavar="N", type=click.IntRange(0), help="Only if the setting still has this version.  [default: any]"
)
_REASON = click.option("--reason", default="", help="Reason, for the history.")

ROWS = (
    Request("get", f"GET {_AT}/{{name}}", "Show everything about one setting.", (_the_setting,), view=_show),
    Request("set", f"PUT {_AT}/{{name}}", "Change a setting for the whole cluster, while its brokers run.",
        (_the_setting, click.argument("value"), _VERSION, _REASON), done=_told),
    Request("unset", f"DELETE {_AT}/{{name}}", "Leave a setting to each broker again: the value of its start holds.",
        (_the_setting, _VERSION, _REASON), done=_told),
    Request("history", f"GET {_AT}/{{name}}/history",
        "Show who changed a setting: from what to what, when and why; oldest first.", (_the_setting, since_option),
        pages=True, empty="{name} was not changed", columns={"version": "version",
        "when": lambda each: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["at_ms"] / 1000)), "by": "author",
        "old": lambda each: "-" if each["old"] is None else _value(each["old"]),
        "new": lambda each: _value(each["value"]) if each["set"] else "unset", "reason": "reason"}),
)  # fmt: skip

_PULSARS = "/admin/v2/brokers/configuration"
_PULSARS_NAME = click.option("-c", "--config", "name", required=True, help="Name of the setting, ours or Pulsar's.")
_VALUES = {"setting": first, "value": second}

PULSAR_ROWS = (
    Request("update-dynamic-config", f"POST {_PULSARS}/{{name}}/{{value}}",
        "Change a setting for the whole cluster, as `config set` does.",
        (_PULSARS_NAME, click.option("-v", "--value", required=True, help="Value, in the unit of the name.")),
        done="{name} is {value}"),
    Request("delete-dynamic-config", f"DELETE {_PULSARS}/{{name}}",
        "Leave a setting to each broker again, as `config unset` does.", (_PULSARS_NAME,),
        done="{name} is left to each broker"),
    Request("get-all-dynamic-config", f"GET {_PULSARS}/values",
        "Show what the cluster has set, by our names and Pulsar's.", columns=_VALUES,
        empty="the cluster has set nothing"),
    Request("list-dynamic-config", f"GET {_PULSARS}",
        "List settings that can change while brokers run, by our names and Pulsar's.", columns="setting"),
    Request("get-runtime-config", f"GET {_PULSARS}/runtime",
        "Show the values of the asked broker, by our names and Pulsar's.", columns=_VALUES),
)  # fmt: skip


@click.group(cls=Group, commands=commands(ROWS))
def config() -> None:
    """Show settings and who set them, and change settings while brokers run.

    NAME is our name or Pulsar's; a value is in the unit of that name. docs/settings.md lists all settings.
    """


@config.command("list", short_help="List settings that are not at their defaults.")
@click.option("-a", "--all", "all_", is_flag=True, help="Also list settings at their defaults.")
@click.option("--live", is_flag=True, help="Only settings that can change while brokers run.")
@click.option("--prefix", metavar="TEXT", help="Only settings whose name, ours or Pulsar's, begins with TEXT.")
@click.option("--source", type=click.Choice(SOURCES), help="Only values from this source.")
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
