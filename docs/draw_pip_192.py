"""Draws into `docs/pip-192.md` what it shows of `tests/scenarios/` and of the settings.

`python docs/draw_pip_192.py` writes the page; with `--check` it writes nothing and exits 1 if the page is stale.
"""

from __future__ import annotations

import re
from pathlib import Path

from draw_settings import shown
from drawing import draw

from loadmanager.settings import descriptions
from loadmanager.settings.names import ELSEWHERE
from loadmanager.settings.removed import PULSARS, REMOVED

PAGE = Path(__file__).with_name("pip-192.md")
SCENARIOS = PAGE.parents[1] / "tests" / "scenarios"
TABLE = re.compile(r"(x|x1|x2|y) \w")
"""A line of the table of all bundles."""

PROPOSED = {
    "loadBalancerDebugModeEnabled": "false",
    "loadBalancerBrokerLoadTargetStd": "0.25",
    "loadBalancerSheddingConditionHitCountThreshold": "3",
    "loadBalancerTransferEnabled": "true",
    "loadBalancerMaxNumberOfBrokerSheddingPerCycle": "3",
    "loadBalanceSheddingDelayInSeconds": "180",
    "loadBalancerBrokerLoadDataTTLInSeconds": "1800",
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport": "10",
    "loadBalancerSplitIntervalMinutes": "1",
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle": "10",
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": "3",
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": "3600",
    "loadBalancerSheddingBundlesWithPoliciesEnabled": "false",
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": "30000",
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds": "60",
}
"""The settings of the proposal with their defaults, in its order."""


def scenario(name: str, *stanzas: int) -> str:
    """Some stanzas of a scenario, by their numbers: commands, then what all brokers read after them."""
    text = (SCENARIOS / f"{name}.txt").read_text(encoding="utf-8").split("\n\n")
    return "\n".join(["```text", "\n\n".join(_stanza(text[number]) for number in stanzas), "```"])


def _stanza(text: str) -> str:
    """Commands after `>`, what became of them, and no tables."""
    typed, _, told = text.partition("\n----\n")
    commands = [f"> {line}" for line in typed.splitlines() if line != "table" and not line.startswith(("#", "name "))]
    return "\n".join([*commands, *(line for line in told.splitlines() if not TABLE.match(line))])


def settings() -> str:
    ours = {name: each for each in descriptions().values() for name in each.pulsar}
    lines = ["| PIP-192 | its default | here | default |", "|---|---|---|---|"]
    for name, default in PROPOSED.items():
        if name in ours:
            each = ours[name]
            lines.append(f"| `{name}` | {default} | `{each.name}` | {shown(each.default)} {each.unit}".rstrip() + " |")
        elif name in PULSARS:
            lines.append(f"| `{name}` | {default} | {REMOVED[PULSARS[name]]} | |")
        else:
            lines.append(f"| `{name}` | {default} | none: {ELSEWHERE[name]} | |")
    return "\n".join(lines)


DRAWINGS = {
    "assignment": lambda: scenario("assign", 2, 3),
    "transfer": lambda: scenario("transfer", 3, 4, 5, 6),
    "split": lambda: scenario("split", 3, 4),
    "conflict": lambda: scenario("conflict_own_own", 2, 3),
    "settings": settings,
}


if __name__ == "__main__":
    draw(PAGE, DRAWINGS)
