"""Draws `docs/state-machine.md` from `statechannel/law/transitions.py`: the tables and the diagram between its markers.

`python docs/draw_state_machine.py` writes the page; with `--check` it writes nothing and exits 1 if the page is stale.
The prose around the markers is written by hand and left alone.
"""

from __future__ import annotations

from pathlib import Path

from drawing import draw

from statechannel.law.transitions import (
    IN_FLIGHT,
    RESHAPING,
    SERVING_STATES,
    TABLE,
    Guard,
    Reshape,
    Row,
    State,
    Then,
    Who,
)

PAGE = Path(__file__).with_name("state-machine.md")

RESULT = {
    Then.HOLD_TO: "holder is `to`",
    Then.HOLD_TARGET: "holder is the target",
    Then.AIM_TO: "target is `to`",
    Then.KEEP: "holder stays",
    Then.KEEP_BOTH: "holder and target stay",
    Then.NOBODY: "no holder",
}


def by(who: frozenset[Who]) -> str:
    """In the order of the enumeration, whatever the hash seed."""
    return ", ".join(w.value for w in Who if w in who)


def if_(guard: Guard | None) -> str:
    return "" if guard is None else (guard.__doc__ or "").strip().rstrip(".")


def states_table() -> str:
    lines = ["| state | who may serve | in flight |", "|---|---|---|"]
    for state in State:
        serves = "the holder" if state in SERVING_STATES else "no broker"
        if state is State.ASSIGNING:
            serves = "the holder, once it has acquired"
        lines.append(f"| {state} | {serves} | {'yes' if state in IN_FLIGHT else ''} |")
    return "\n".join(lines)


def steps_table() -> str:
    """One line for the rows that differ in their state alone."""
    lines = ["| from | action | by | only if | to | then | new token | why |", "|---|---|---|---|---|---|---|---|"]
    states: dict[str, list[str]] = {}
    for row in TABLE:
        cells = (by(row.by), if_(row.guard), row.next, RESULT[row.then], "yes" if row.fences else "", row.why)
        rest = f"`{row.action}` | {' | '.join(cells)} |"
        states.setdefault(rest, []).append(row.state)
    return "\n".join([*lines, *(f"| {', '.join(found)} | {rest}" for rest, found in states.items())])


def reshaping_table() -> str:
    lines = ["| from | action | by | result | why |", "|---|---|---|---|---|"]
    for row in RESHAPING:
        result = "no bundle" if row.next is None else f"{row.next}, with a new token"
        lines.append(f"| {came_from(row)} | `{row.action}` | {by(row.by)} | {result} | {row.why} |")
    return "\n".join(lines)


def came_from(row: Reshape) -> str:
    return " or ".join(state for state in State if state in row.states) or "no bundle"


def diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR"]
    lines += [f"    {line}" for line in (*reshaping_arrows(), *map(arrow, TABLE))]
    return "\n".join([*lines, "```"])


def arrow(row: Row) -> str:
    return f"{row.state} --> {row.next}: {row.action} ({by(row.by)})"


def reshaping_arrows() -> list[str]:
    return [
        f"{state} --> {row.next or '[*]'}: {row.action} ({by(row.by)})"
        for row in RESHAPING
        for state in [s for s in State if s in row.states] or ["[*]"]
    ]


DRAWINGS = {"states": states_table, "steps": steps_table, "reshaping": reshaping_table, "diagram": diagram}


if __name__ == "__main__":
    draw(PAGE, DRAWINGS)
