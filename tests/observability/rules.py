"""The rules of `observability/`, as they are and with short times."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "observability" / "prometheus" / "rules.yml"

METRIC = re.compile(r"(?<![:\w])loadmanager_\w+")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def quick(within: str = "20s") -> str:
    """The rules with short times: no wait before an alert, and rates over a few scrapes."""
    document = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
            rule["expr"] = re.sub(r"\[\w+\]", f"[{within}]", rule["expr"])
    return yaml.safe_dump(document)
