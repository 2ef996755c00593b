"""Draws the table of routes and roles in `docs/security.md` from `loadmanager_api/access/rules.py`."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from drawing import draw

from loadmanager_api.access.rules import RULES, Rule, Scope

PAGE = Path(__file__).with_name("security.md")


def rules_table() -> str:
    """One line for each role and place, with its routes."""
    routes: dict[Rule, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, methods in RULES.items():
        for method, rule in methods.items():
            routes[rule][re.sub(r":\w+}", "}", path)].append(method)
    lines = ["| role | where | routes |", "|---|---|---|"]
    for rule, paths in sorted(routes.items(), key=lambda item: (item[0].role.rank, item[0].scope is not Scope.OPEN)):
        role = "" if rule.scope is Scope.OPEN else rule.role
        by_methods: dict[str, list[str]] = defaultdict(list)
        for path, methods in paths.items():
            by_methods[", ".join(methods)].append(f"`{path}`")
        listed = "<br>".join(f"{methods}: " + "<br>".join(same) for methods, same in by_methods.items())
        lines.append(f"| {role} | {rule.scope} | {listed} |")
    return "\n".join(lines)


if __name__ == "__main__":
    draw(PAGE, {"rules": rules_table})
