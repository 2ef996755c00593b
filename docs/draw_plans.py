"""Draws the table and the diagram of `docs/plans.md` from `loadmanager/leader/rebalancing/plans.py`, between its
markers.

`python docs/draw_plans.py` writes the page; with `--check` it writes nothing and exits 1 if the page is stale.
"""

from __future__ import annotations

from pathlib import Path

from drawing import draw

from loadmanager.leader.rebalancing.plans import PLAN_TABLE

PAGE = Path(__file__).with_name("plans.md")


def steps() -> str:
    """A line for each row."""
    lines = ["| from | step | by | only if | to | why |", "|---|---|---|---|---|---|"]
    for row in PLAN_TABLE:
        guard = "" if row.guard is None else (row.guard.__doc__ or "").strip().rstrip(".")
        lines.append(f"| {row.state} | `{row.action}` | {row.by} | {guard} | {row.next} | {row.why} |")
    return "\n".join(lines)


def diagram() -> str:
    """An arrow for each row that leads somewhere else."""
    arrows = [f"    {r.state} --> {r.next}: {r.action}" for r in PLAN_TABLE if r.state is not r.next]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> proposed: propose", *arrows, "```"])


if __name__ == "__main__":
    draw(PAGE, {"steps": steps, "diagram": diagram})
