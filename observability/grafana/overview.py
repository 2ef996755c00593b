"""Writes overview.json, the Grafana dashboard of a cluster: `python observability/grafana/overview.py`.

docs/metrics.md says what each metric means.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("overview.json")
COLUMNS, WIDTH, HEIGHT = 3, 8, 7
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True}
TOOLTIP = {"mode": "multi", "sort": "desc"}


def now(metric: str, how: str = "max", by: str = "") -> str:
    """The values of a gauge, over the brokers."""
    return f"{how}{f' by ({by}) ' if by else ''}({of(metric)})"


def rate(metric: str, by: str = "", only: str = "", how: str = "sum") -> str:
    """A counter's growth per second."""
    return f"{how}{f' by ({by}) ' if by else ''}(rate({of(metric, only)}[$__rate_interval]))"


def p99(metric: str, by: str = "") -> str:
    """99 % of what a histogram counts is below."""
    return f"histogram_quantile(0.99, {rate(f'{metric}_bucket', f'le, {by}' if by else 'le')})"


def of(metric: str, only: str = "") -> str:
    """The metric's series of the chosen cluster."""
    more = f", {only}" if only else ""
    return f'loadmanager_{metric}{{job="$job"{more}}}'


def _panel(kind: str, title: str, unit: str, asked: Any, about: str, options: dict[str, Any]) -> dict[str, Any]:
    targets = [
        {"refId": "ABCDEF"[at], "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for at, (expression, legend) in enumerate(asked)
    ]
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": options,
        "targets": targets,
    }


def lines(title: str, unit: str, *asked: tuple[str, str], about: str = "") -> dict[str, Any]:
    """Lines over time: each `asked` is an expression and the legend of its series."""
    return _panel("timeseries", title, unit, asked, about, {"legend": LEGEND, "tooltip": TOOLTIP})


def figure(title: str, expression: str, about: str = "", unit: str = "none") -> dict[str, Any]:
    """One number."""
    return _panel("stat", title, unit, [(expression, "")], about, {"reduceOptions": {"calcs": ["lastNotNull"]}})


def heat(title: str, histogram: str, about: str = "") -> dict[str, Any]:
    """A histogram in seconds over time."""
    asked = rate(f"{histogram}_bucket", "le").replace("rate(", "increase(", 1)
    options = {"calculate": False, "yAxis": {"unit": "s"}, "cellGap": 1, "tooltip": {"mode": "single"}}
    panel = _panel("heatmap", title, "none", [(asked, "{{le}}")], about, options)
    panel["targets"][0]["format"] = "heatmap"
    return panel


ROWS: list[tuple[str, list[dict[str, Any]]]] = [
    ("Cluster", [
        figure("Leaders", now("leader", "sum"), "Should be 1."),
        figure("Bundles without a live owner", now("bundles_orphaned"), "Should be 0."),
        figure("Brokers that are ready", now("ready", "sum")),
        lines("Bundles by owner", "none", (now("owned_bundles", "sum", "instance"), "{{instance}}")),
        lines("Bundles by state", "none", (now("bundles", by="state"), "{{state}}")),
        lines("Brokers that need a look", "none", (now("members_draining"), "draining"),
              (now("members_behind"), "behind the log"), (now("members_unfit"), "unfit"),
              (now("members_suspected"), "suspected"),
              (now("members_without_load"), "without load data")),
    ]),
    ("Moves", [
        lines("Moves", "ops", (rate("move_duration_seconds_count", "kind"), "{{kind}}"),
              (rate("move_returns_total"), "back within ten minutes")),
        heat("Time without a serving broker", "move_gap_seconds", "Moves and takeovers, as the new owner saw them."),
        lines("Hooks, 99 %", "s", (p99("hook_duration_seconds", "hook"), "{{hook}}"),
              about="With the time that a call waited for a thread."),
        lines("Moves under way", "none", (now("moves_in_flight"), "planned"),
              (now("move_oldest_seconds"), "age of the oldest, s")),
        lines("Hooks that failed", "ops",
              (rate("hook_duration_seconds_count", "hook", 'result="failed"'), "{{hook}}")),
        lines("Splits and merges", "ops", (rate("splits_total", "result"), "split {{result}}"),
              (rate("merges_total"), "merge")),
    ]),
    ("Ownership and the log", [
        lines("Age of proofs", "percentunit",
              (f"{now('proof_age_seconds', by='instance')} / on (instance) {of('proof_validity_seconds')}",
               "{{instance}}"),
              about="Of their validity. At 1 the broker stops serving; about 0.25 is healthy."),
        lines("Longest turn of the control loop", "s", (of("loop_longest_turn_seconds"), "{{instance}}"),
              (of("loop_longest_own_turn_seconds"), "{{instance}}, own"),
              about="Of the last minute or two; and without waits for a processor."),
        lines("Replica's lag", "none", (now("channel_lag_records", by="instance"), "{{instance}}"),
              about="Entries of the log that the broker has not applied."),
        lines("Refusals by reason", "ops",
              (rate("channel_records_total", "reason", 'outcome="refused"', how="max"), "{{reason}}")),
        lines("Records", "s", (p99("channel_record_age_seconds"), "age when read, 99 %"),
              (p99("channel_publish_duration_seconds"), "publish to verdict, 99 %")),
        lines("Log since the newest snapshot", "none",
              (now("snapshot_lag_records", by="partition"), "partition {{partition}}")),
    ]),
    ("Balance", [
        lines("Usage by broker", "percentunit", (of("load_usage_ratio"), "{{instance}}")),
        lines("Spread", "percentunit", (now("balancing_spread"), "max/mean - 1")),
        lines("Rounds", "s", (now("balancing_round_age_seconds"), "since the last round"),
              (now("balancing_interval_seconds"), "interval")),
        lines("Moves by stage", "ops", (rate("balancing_moves_total", "stage"), "{{stage}}")),
        lines("Held back by rule", "ops", (rate("balancing_held_back_total", "rule"), "{{rule}}")),
        lines("Age of load data", "s", (now("load_oldest_age_seconds"), "oldest report")),
    ]),
    ("Clients", [
        lines("Lookups", "reqps", (rate("lookups_total", "outcome"), "{{outcome}}"),
              (rate("lookups_deferred_total"), "deferred")),
        lines("Requests by principal", "reqps", (rate("http_principal_requests_total", "principal"), "{{principal}}")),
        lines("Answers by code", "reqps", (rate("http_requests_total", "code"), "{{code}}")),
        lines("Requests, 99 %", "s", (p99("http_request_duration_seconds", "kind"), "{{kind}}"),
              (p99("lookup_wait_seconds"), "wait of deferred lookups")),
        lines("Connections", "none", (now("http_connections", "sum", "instance"), "{{instance}}")),
        lines("Turned away", "ops", (rate("http_requests_refused_total", "why"), "503, {{why}}"),
              (rate("http_connections_refused_total", "how"), "connections {{how}}")),
    ]),
    ("Consumer groups that brokers coordinate", [
        lines("Lag", "none", (now("consumer_lag_messages", "sum", "consumer_group"), "{{consumer_group}}"),
              about="Records that are not consumed."),
        lines("Age of the oldest record that is not consumed", "s",
              (now("consumer_lag_latency_seconds", by="consumer_group"), "{{consumer_group}}")),
        lines("Available and in flight", "none",
              (now("consumer_ready_messages", "sum", "consumer_group"), "{{consumer_group}}, available"),
              (now("consumer_inflight_messages", "sum", "consumer_group"), "{{consumer_group}}, in flight"),
              about="Available: not pulled, more consumers would help. In flight: pulled; if it grows alone, look for "
                    "a slow record."),
    ]),
]  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(y, 0, 24, 1)})
        y += 1
        for at, panel in enumerate(row):
            place = _place(y + at // COLUMNS * HEIGHT, at % COLUMNS * WIDTH, WIDTH, HEIGHT)
            panels.append({**panel, "gridPos": place})
        y += -(-len(row) // COLUMNS) * HEIGHT
    return {
        "uid": "loadmanager-overview",
        "title": "loadmanager: overview",
        "tags": ["loadmanager"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            {"name": "job", "label": "cluster", "type": "query", "datasource": SOURCE, "refresh": 2,
             "query": "label_values(loadmanager_build_info, job)"},
        ]},
        "panels": [{"id": at, **panel} for at, panel in enumerate(panels, start=1)],
    }  # fmt: skip


def _place(y: int, x: int, w: int, h: int) -> dict[str, int]:
    return {"h": h, "w": w, "x": x, "y": y}


def text() -> str:
    """What the file should hold."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
