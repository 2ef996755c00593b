"""Pictures of transfers: when bundles moved and how, and how long no broker served them."""

from __future__ import annotations

from typing import Any

from loadmanager.history.report.drawing import (
    AMBER,
    BLUE,
    RED,
    WIDTH,
    Chart,
    altair,
    clock,
    duration,
    ms,
    spec_of,
    stacked,
    times,
    whole,
)
from loadmanager.history.report.material import Material

HOW = {"transfer": BLUE, "unload": AMBER, "failover": RED}
"""Ways of moving, in the words of the analysis `transfers`."""

NONE = "No bundle moved in this time."


def transfers(material: Material) -> Chart:
    """Moves over time, by how they came about."""
    name, span = "transfers", material.span
    if not material.moves:
        return Chart(name, "No bundle moved", NONE)
    library = altair()
    totals = {how: sum(row["moves"] for row in material.moves if row["how"] == how) for how in HOW}
    returned = sum(row["returned"] for row in material.gaps)
    parts = ", ".join(f"{count:,} by {how}" for how, count in totals.items() if count)
    title = f"{sum(totals.values()):,} moves: {parts}; {returned or 'none'} came back within the rest time"
    rows = [
        {
            "at": ms(row["at"]),
            "until": ms(row["at"]) + span.bucket_s * 1000,
            "how": row["how"],
            "moves": row["moves"],
            "says": f"{clock(row['at'], span.seconds)}: {row['moves']} by {row['how']}",
        }
        for row in material.moves
    ]
    chart = (
        library.Chart(library.Data(values=stacked(rows, "at", "moves")))
        .mark_rect(clip=True)
        .encode(
            x=times(library, span),
            x2="until:T",
            y=library.Y("low:Q", title=f"moves in {duration(span.bucket_s)}", axis=whole(library)),
            y2="high:Q",
            color=_colours(library, [how for how, count in totals.items() if count]),
            description="says:N",
        )
        .properties(width=WIDTH, height=120)
    )
    return Chart(
        name, title, "A transfer is warmed up at the new owner first; a failover follows a death.", spec_of(chart)
    )


def gaps(material: Material) -> Chart:
    """How long bundles were without service while they moved."""
    name = "gaps"
    if not material.gap_shares:
        return Chart(name, "No gaps", NONE)
    library = altair()
    title = "; ".join(_typical(material, how) for how in HOW if any(row["how"] == how for row in material.gaps))
    rows = [
        {
            **{key: row[key] for key in ("how", "low_s", "high_s", "moves")},
            "says": f"{row['moves']} by {row['how']}: {duration(row['low_s'])} to {duration(row['high_s'])}",
        }
        for row in material.gap_shares
    ]
    axis = library.Axis(labelExpr=_LOG_LABELS, values=[0.001, 0.01, 0.1, 1, 10, 100, 1000], grid=False)
    chart = (
        library.Chart(library.Data(values=stacked(rows, "low_s", "moves")))
        .mark_rect()
        .encode(
            x=library.X("low_s:Q", title="without service", scale=library.Scale(type="log"), axis=axis),
            x2="high_s:Q",
            y=library.Y("low:Q", title="moves", axis=whole(library)),
            y2="high:Q",
            color=_colours(library, list({row["how"]: None for row in rows})),
            description="says:N",
        )
        .properties(width=WIDTH, height=140)
    )
    note = (
        "From the record with which the old owner stops serving to the one with which the new owner serves, on a "
        "logarithmic scale. Clients wait about that long; in a failover, the detection comes before it."
    )
    return Chart(name, title[:1].upper() + title[1:], note, spec_of(chart))


_LOG_LABELS = "datum.value < 1 ? format(datum.value * 1000, 'd') + ' ms' : format(datum.value, 'd') + ' s'"


def _typical(material: Material, how: str) -> str:
    kinds = [row for row in material.gaps if row["how"] == how and row["p50_s"] is not None]
    if not kinds:
        return f"{how}s without a known gap"
    most = max(kinds, key=lambda row: row["moves"])
    worst = max(row["max_s"] for row in kinds)
    return f"{how}s took {duration(most['p50_s'])} in the median, {duration(worst)} at worst"


def _colours(library: Any, names: list[str]) -> Any:
    shown = [name for name in HOW if name in names]
    return library.Color("how:N", scale=library.Scale(domain=shown, range=[HOW[name] for name in shown]))
