"""Pictures of what would be: forecasts, other strategies on the same load, and what load costs."""

from __future__ import annotations

from typing import Any

from loadmanager.history.report.drawing import (
    BLUE,
    COLOURS,
    INK,
    MUTED,
    WIDTH,
    Chart,
    altair,
    clock,
    ms,
    names,
    spec_of,
    times,
)
from loadmanager.history.report.material import DAY_S, HOUR_S, Material, Span

LEAST_HOURS = 6
EXPLAINED = 0.1
"""A model with an R² below this tells nothing, and is not drawn."""
NOTHING = 1e-6
"""A cost below this is rounding."""
TOGETHER = 0.05
"""A load with less variance of its own than this part has a cost that cannot be told from those of others."""
UNITS = {
    "cpu": "cores",
    "memory": "bytes",
    "bandwidth in": "bytes/s",
    "bandwidth out": "bytes/s",
    "message rate": "messages/s",
}


def forecast(material: Material) -> Chart:
    """The hottest bundles' past and what follows, with the band in which nine of ten hours should fall."""
    name = "forecast"
    hours_known = len({row["at"] for row in material.history})
    if not material.forecast or hours_known < LEAST_HOURS:
        why = f"A forecast needs hours of load, and seasons a day or two; {hours_known} h of these bundles are known."
        return Chart(name, "No forecast yet", why)
    library = altair()
    bundles = list({row["bundle"]: None for row in material.forecast})
    errors = [row["mape"] for row in material.forecast if row["mape"] is not None]
    how_good = (
        f", {sum(errors) / len(errors):.0%} off on average in the past" if errors else ", not yet tried on the past"
    )
    hours = len({row["at"] for row in material.forecast})
    title = f"The {_count(bundles)} hottest bundles, {hours} hours ahead{how_good}"
    last = bundles[-1]
    panels = [_panel(library, bundle, material, labels=bundle == last) for bundle in bundles]
    note = (
        f"Grey: the past, by hour, in {UNITS[material.measure]}. Blue: the forecast by the method that was best for "
        "this bundle in a backtest; nine of ten hours should lie in the band."
    )
    return Chart(name, title, note, spec_of(library.vconcat(*panels, spacing=10).resolve_scale(x="shared")))


def _count(bundles: list[str]) -> str:
    return {1: "single", 2: "two", 3: "three", 4: "four"}.get(len(bundles), str(len(bundles)))


def _panel(library: Any, bundle: str, material: Material, *, labels: bool) -> Any:
    past = [{"at": ms(row["at"]), "load": row["load"]} for row in material.history if row["bundle"] == bundle]
    future = [
        {
            "at": ms(row["at"]),
            **{key: row[key] for key in ("predicted", "low", "high")},
            "says": f"{clock(row['at'], DAY_S * 2)}: {row['predicted']:.3g}, {row['low']:.3g} to {row['high']:.3g}",
        }
        for row in material.forecast
        if row["bundle"] == bundle
    ]
    moments = [row["at"] for row in (*material.history, *material.forecast)]
    x = times(library, Span(min(moments), max(moments), HOUR_S), labels=labels)
    ahead = library.Chart(library.Data(values=future)).encode(x=x)
    axis = library.Axis(tickCount=3, format="~g" if material.measure == "cpu" else "~s")
    layers = [
        library.Chart(library.Data(values=past))
        .mark_line(color=MUTED, strokeWidth=1.3, aria=False)
        .encode(x=x, y=library.Y("load:Q", title=None, axis=axis)),
        ahead.mark_area(color=BLUE, opacity=0.2, aria=False).encode(y=library.Y("low:Q", title=None), y2="high:Q"),
        ahead.mark_line(color=BLUE, strokeWidth=1.8, aria=False).encode(y="predicted:Q"),
        ahead.mark_point(size=50, opacity=0, filled=True).encode(y="predicted:Q", description="says:N"),
    ]
    heading = library.Title(bundle, anchor="start", fontSize=11, fontWeight="normal", color=INK)
    return library.layer(*layers).properties(width=WIDTH, height=84, title=heading)


def replay(material: Material) -> Chart:
    """Candidates, the best first: each one's regret against the optimum in hindsight."""
    name, found = "replay", material.found.replay
    if found is None or not found.rows:
        return Chart(name, "Not replayed yet", "Run `loadmanager history replay`; the next report shows its ranking.")
    library = altair()
    rows = [
        {
            "candidate": _ranked(row),
            **row["regret"],
            "kind": "recorded" if row["candidate"] == "recorded" else "best" if row["rank"] == 1 else "other",
            "says": f"{row['candidate']}: regret {row['regret']['mean']:.3g} ({row['regret']['low']:.3g} to "
            f"{row['regret']['high']:.3g}), {row['moves']:.1f} moves a window, "
            f"fullest over mean {row['max_over_mean']['mean']:.2f}",
        }
        for row in found.rows
    ]
    scale = library.Scale(domain=["best", "recorded", "other"], range=[BLUE, COLOURS[1], COLOURS[4]])
    base = library.Chart(library.Data(values=rows)).encode(
        y=names(library, "candidate", (row["candidate"] for row in rows)),
        color=library.Color("kind:N", scale=scale, legend=None),
    )
    axis = library.Axis(grid=True, tickCount=6)
    layers = [
        base.mark_rule(strokeWidth=3, opacity=0.45, aria=False).encode(
            x=library.X("low:Q", title="regret: cost above the optimum in hindsight", axis=axis), x2="high:Q"
        ),
        base.mark_point(filled=True, size=90, opacity=1).encode(x="mean:Q", description="says:N"),
    ]
    chart = library.layer(*layers).properties(width=WIDTH - 230, height=24 * len(rows) + 10)
    note = (
        "Each candidate plays the recorded load in the simulator, window by window, with the code that runs in "
        "brokers. The line is the 95 % interval over windows; blue is the best, orange what the cluster did."
    )
    return Chart(name, str(found.facts.get("verdict") or "How candidates would have done"), note, spec_of(chart))


def _ranked(row: dict[str, Any]) -> str:
    return f"{row['rank']}  {row['candidate']}" + ("  (broke a rule)" if row["violations"] else "")


def capacity(material: Material) -> Chart:
    """What each kind of load costs, by kind of broker."""
    name = "capacity"
    explaining = [row for row in material.capacity if row["r2"] is not None and row["r2"] >= EXPLAINED]
    rows = [row for row in explaining if row["coefficient"] > NOTHING]
    if not rows:
        why = f"The model needs minutes whose loads differ enough to explain {EXPLAINED:.0%} of the brokers' CPU."
        return Chart(name, "No capacity model yet", why)
    library = altair()
    kinds = list({row["kind"]: None for row in rows})
    explained = f"explains {min(row['r2'] for row in rows):.0%} of the variation of their CPU"
    others = material.kinds - len(kinds[:2])
    more = f" (and {others} more kinds)" if others > 0 else ""
    title = f"What load costs a broker of {' or '.join(kinds[:2])}{more}: the model {explained}"
    values = [_bar(row) for row in rows]
    base = library.Chart(library.Data(values=values)).encode(y=names(library, "term", (row["term"] for row in values)))
    bars = base.mark_bar(height=12).encode(
        opacity=library.Opacity("opacity:Q", scale=None, legend=None),
        x=library.X("coefficient:Q", title="cores", axis=library.Axis(grid=True, tickCount=5)),
        color=library.Color("kind:N", scale=library.Scale(domain=kinds, range=list(COLOURS[: len(kinds)]))),
        yOffset=library.YOffset("kind:N"),
        description="says:N",
    )
    errors = base.mark_rule(color=MUTED, strokeWidth=2, aria=False).encode(x="low:Q", x2="high:Q", yOffset="kind:N")
    height = library.Step(18)
    chart = library.layer(bars, errors).properties(width=WIDTH - 200, height=height)
    note = (
        "A regression over broker minutes; the thin line is the 95 % interval. The model cannot separate loads that "
        "always rise together: then their sum is right and its division is not; such bars are pale."
    )
    return Chart(name, title, note, spec_of(chart))


def _bar(row: dict[str, Any]) -> dict[str, Any]:
    error = 1.96 * (row["standard_error"] or 0.0)
    together = row["alone"] is not None and row["alone"] < TOGETHER
    unit = row["unit"].removeprefix("cores").strip()
    return {
        "term": f"{row['term']}, {unit}" if unit else row["term"],
        "kind": row["kind"],
        "coefficient": row["coefficient"],
        "low": max(0.0, row["coefficient"] - error),
        "high": row["coefficient"] + error,
        "opacity": 0.4 if together else 1.0,
        "says": f"{row['term']}: {row['coefficient']:.3g} {row['unit']}, on {row['kind']}"
        + (", not separable from loads that rise with it" if together else ""),
    }
