"""Draws the tables of `docs/settings.md` from `loadmanager/settings/` and the names of Pulsar that have no counterpart.

`python docs/draw_settings.py` writes the page; with `--check` it writes nothing and exits 1 if the page is stale. The
prose around the markers is written by hand and left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from drawing import draw
from pydantic_settings import BaseSettings

from loadmanager.settings import Description, Settings, descriptions
from loadmanager.settings.names import ELSEWHERE
from loadmanager.settings.removed import PULSARS, REMOVED

PAGE = Path(__file__).with_name("settings.md")


def settings_tables() -> str:
    return "\n\n".join(f"### {title}\n\n{table(settings)}" for title, settings in sections())


def sections() -> Iterator[tuple[str, list[Description]]]:
    """Each class that `Settings` is made of, with its fields, in the order in which they are declared."""
    for section in reversed(Settings.__mro__):
        names = [name for name in vars(section).get("__annotations__", ()) if name in descriptions()]
        if issubclass(section, BaseSettings) and section is not Settings and names:
            yield (section.__doc__ or "").strip().rstrip("."), [descriptions()[name] for name in names]


def table(settings: list[Description]) -> str:
    lines = ["| setting | unit | default | allowed | live | what it is | why so | Pulsar's |", "|---" * 8 + "|"]
    lines += [
        "| "
        + " | ".join(
            (
                f"`{each.name}`",
                each.unit,
                f"`{shown(each.default)}`",
                ", ".join((each.type, *each.bounds)),
                "yes" if each.live else "",
                text(each.meaning),
                each.why,
                "<br>".join(pulsars(each)),
            )
        )
        + " |"
        for each in settings
    ]
    return "\n".join(re.sub(r" {2,}", " ", line) for line in lines)


def pulsars(setting: Description) -> Iterator[str]:
    for name, factor in setting.pulsar.items():
        yield f"`{name}`" + ("" if factor == 1.0 else f" times {shown(factor)}")


def shown(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{int(value):,}" if value == int(value) else str(value)
    if value is None:
        return "none"
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()


def text(meaning: str) -> str:
    """As prose of a page: brackets are no links."""
    return meaning.replace("][", "]\\[")


def words_table() -> str:
    lines = ["| setting | Pulsar's word | here |", "|---|---|---|"]
    for each in descriptions().values():
        lines += [f"| `{each.name}` | `{theirs}` | `{ours}` |" for theirs, ours in each.words.items()]
    return "\n".join(lines)


def elsewhere_table() -> str:
    return "\n".join(
        ["| Pulsar's | here |", "|---|---|", *(f"| `{name}` | {why} |" for name, why in ELSEWHERE.items())]
    )


FIRST = (
    "log", "coordination", "advertised", "zookeeper", "tls_certificate", "token_keys", "capacity", "failure_domain",
)  # fmt: skip
"""What a cluster needs first; the rest may stay at its default."""


def first_table() -> str:
    lines = ["| setting | default | what it is |", "|---|---|---|"]
    chosen = (descriptions()[name] for name in FIRST)
    return "\n".join(
        [*lines, *(f"| `{each.name}` | `{shown(each.default)}` | {text(each.meaning)} |" for each in chosen)]
    )


def removed_table() -> str:
    return "\n".join(
        ["| name | what holds |", "|---|---|", *(f"| `{name}` | {holds} |" for name, holds in REMOVED.items())]
    )


def fixed_table() -> str:
    lines = ["| Pulsar's | here |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {REMOVED[ours]} |" for name, ours in PULSARS.items())])


DRAWINGS = {
    "first": first_table,
    "settings": settings_tables,
    "words": words_table,
    "elsewhere": elsewhere_table,
    "fixed": fixed_table,
    "removed": removed_table,
}


if __name__ == "__main__":
    draw(PAGE, DRAWINGS)
