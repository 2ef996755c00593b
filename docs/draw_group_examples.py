"""Draws the examples of `docs/group-examples.md`: a group's strategies divide the partitions, as its coordinator asks.

`python docs/draw_group_examples.py` writes the page; with `--check` it writes nothing and exits 1 if the page is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from drawing import draw

from loadmanager.consumers.allocation.measures import balance_degree, stickiness
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.consumers.coordinator.targets import Situation, Targets

PAGE = Path(__file__).with_name("group-examples.md")
TOPIC = "T"
HEAD = ["| strategy | members | reads | kept | balance degree |", "|---|---|---|---|---|"]


def divided(strategy: str, size: int, *steps: Iterable[str], first: int = 1, letter: str = "Q") -> list[str]:
    """A line for each step: who reads what when these are the members."""
    targets, lines, before = Targets(strategy, {}), list[str](), dict[str, list[Partition]]()
    for members in steps:
        situation = Situation({each: Subscription((TOPIC,)) for each in members}, {TOPIC: size})
        targets.renew(situation)
        found = {each: [place for place in situation.partitions() if targets.of(place) == each] for each in members}
        kept = f"{stickiness(before, found, size):.2f}" if before else ""
        names = ", ".join(found)
        lines.append(
            f"| `{strategy}` | {names} | {_reads(found, first, letter)} | {kept} | {balance_degree(found):.2f} |"
        )
        before = found
    return lines


def _reads(found: Mapping[str, list[Partition]], first: int, letter: str) -> str:
    named = {member: " ".join(f"{letter}{number + first}" for _, number in its) for member, its in found.items()}
    return "; ".join(f"{member}: {its or '-'}" for member, its in named.items())


def eight() -> str:
    """Eight queues on three consumers, of which one fails."""
    return "\n".join([*HEAD, *divided("STICKY", 8, ("C0", "C1", "C2"), ("C0", "C2"))])


def sixteen() -> str:
    """Sixteen queues on three consumers and on two; one queue, and two, on fewer than there are consumers."""
    rows = divided("AVG", 16, ("1", "2", "3"), ("1", "2"), first=0, letter="")
    rows += divided("AVG", 1, ("1", "2"), first=0, letter="")
    rows += divided("AVG", 2, ("1", "2", "3"), first=0, letter="")
    return "\n".join([*HEAD, *rows])


def twelve() -> str:
    """Twelve queues on three consumers, of which one leaves: averagely beside sticky."""
    both = [divided(strategy, 12, ("C1", "C2", "C3"), ("C2", "C3")) for strategy in ("AVG", "STICKY")]
    return "\n".join([*HEAD, *both[0], *both[1]])


if __name__ == "__main__":
    draw(PAGE, {"eight": eight, "sixteen": sixteen, "twelve": twelve})
