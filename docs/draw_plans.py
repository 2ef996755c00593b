"""Draws the table of `docs/plans.md`, and what `docs/advice.md` says that advice may change.

`python docs/draw_plans.py` writes the pages; with `--check` it writes nothing and exits 1 if one is stale.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from drawing import draw

from loadmanager.leader.plans.advice import NAMES, NUMBERS
from loadmanager.leader.plans.table import PLAN_TABLE
from loadmanager.settings import descriptions

COLUMNS = 120

PLANS, ADVICE = (Path(__file__).with_name(name) for name in ("plans.md", "advice.md"))


def steps() -> str:
    """A line for each step; states in which a step is the same share a line."""
    states: dict[tuple[object, ...], list[str]] = {}
    for r in PLAN_TABLE:
        states.setdefault((r.action, r.by, r.condition, r.next, r.why), []).append(str(r.state))
    lines = ["| from | step | by | only if | to | why |", "|---|---|---|---|---|---|"]
    for (action, by, condition, to, why), in_these in states.items():
        lines.append(f"| {', '.join(in_these)} | `{action}` | {by} | {condition} | {to} | {why} |")
    return "\n".join(lines)


def settings() -> str:
    """What advice may change, in the order of the settings."""
    numbers = ", ".join(f"`{name}`" for name in descriptions() if name in NUMBERS)
    names = ", ".join(f"`{name}`" for name in descriptions() if name in NAMES)
    paragraphs = (f"These numbers: {numbers}.", f"These names, each to another one that is installed: {names}.")
    return "\n\n".join(fill(each, COLUMNS, break_on_hyphens=False) for each in paragraphs)


if __name__ == "__main__":
    draw(PLANS, {"steps": steps})
    draw(ADVICE, {"settings": settings})
