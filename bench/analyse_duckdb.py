"""The same questions in DuckDB, on the same Parquet: what a single-machine engine needs for them.

Each takes a connection with one view a table, and answers as the analysis of that name does: the same rows, the same
arithmetic, guards included. Where the analysis ends in numpy (seasons, forecasts, the regression), so does this.
"""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import numpy as np

from loadmanager.history.analyses.analysis import DEFAULTS
from loadmanager.history.analyses.forecast import forecast_of
from loadmanager.history.analyses.forecast_error import errors_of
from loadmanager.history.analyses.hours import Series, Table
from loadmanager.history.analyses.regression import Sums, fit
from loadmanager.history.analyses.seasonality import found

SOUND = "CASE WHEN {0} >= 0 AND {0} < 'infinity'::DOUBLE THEN {0} ELSE 0 END"
CPU, IN, OUT, IN_MSG, OUT_MSG = (
    SOUND.format(name)
    for name in ("cpu_percent", "in_rate_bytes_s", "out_rate_bytes_s", "in_rate_msg_s", "out_rate_msg_s")
)
CORES = "coalesce(CASE WHEN capacity['cpu'] > 0 THEN capacity['cpu'] END, 1.0)"
SERVED = "('assigned', 'transferring', 'splitting')"
LOADS = f"""sum(covered_s) AS covered_s, sum(covered_s * ({CPU}) / 100) AS l0, sum(covered_s * ({IN})) AS l2,
    sum(covered_s * ({OUT})) AS l3, sum(covered_s * (({IN_MSG}) + ({OUT_MSG}))) AS l4"""
CLUSTER = f"""SELECT coalesce((SELECT bool_or(({CPU}) > 0) FROM bundle_total), true) AS measured,
    sum(covered_s) AS time, sum(covered_s * ({CPU}) / 100 * {CORES}) AS c0, sum(covered_s * ({IN})) AS c2,
    sum(covered_s * ({OUT})) AS c3, sum(covered_s * (({IN_MSG}) + ({OUT_MSG}))) AS c4,
    sum(covered_s * {CORES}) AS room FROM broker_minute WHERE covered_s > 0"""
Answer = Callable[[duckdb.DuckDBPyConnection], int]


def rows_of(sql: str) -> Answer:
    """Runs it, takes the whole answer as Arrow, and says how many rows it has."""

    def run(db: duckdb.DuckDBPyConnection) -> int:
        return db.sql(sql).to_arrow_table().num_rows

    return run


IMBALANCE = f"""
WITH used AS (SELECT minute, broker, covered_s, ({CPU}) / 100 * {CORES} AS load, {CORES} AS room
              FROM broker_minute WHERE covered_s > 0),
sums AS (SELECT minute, sum(covered_s) AS time, sum(covered_s * load / room) AS total,
                sum(covered_s * (load / room) * (load / room)) AS squares,
                max({{'u': load / room, 'c': covered_s, 'b': broker}}) AS top,
                sum(covered_s * load) AS load, sum(covered_s * room) AS room FROM used GROUP BY minute)
SELECT minute, resource, time / 60 AS brokers, total / time AS mean,
       sqrt(greatest(0, squares / time - (total / time) ** 2)) AS std, top.u AS max, top.u / (total / time) AS over,
       top.b AS broker, load / room AS even, greatest(0.05, 1.1 * load / room) AS allowed,
       CASE WHEN top.u > greatest(0.05, 1.1 * load / room) THEN top.c ELSE 0 END AS above_s
FROM sums, (VALUES ('cpu'), ('fullest')) AS kinds(resource)"""

HOT = f"""
WITH whole AS ({CLUSTER}), loads AS (SELECT bundle, {LOADS} FROM bundle_minute WHERE covered_s > 0 GROUP BY bundle),
shares AS (SELECT bundle, l0, l2, l3, l4, loads.covered_s,
                  greatest(l0 / c0, l2 / c2, l3 / c3, l4 / c4) AS share, l0 / loads.covered_s * time / room AS size
           FROM loads, whole ORDER BY share DESC, bundle LIMIT {DEFAULTS.top})
SELECT row_number() OVER (ORDER BY share DESC, bundle) AS rank, *,
       sum(share) OVER (ORDER BY share DESC, bundle) AS cumulative FROM shares"""

SKEW = f"""
WITH loads AS (SELECT epoch(minute)::BIGINT // 86400 AS day, bundle, {LOADS}
               FROM bundle_minute WHERE covered_s > 0 GROUP BY 1, 2),
kinds AS (SELECT day, bundle, unnest([0, 2, 3, 4]) AS resource, unnest([l0, l2, l3, l4]) AS load FROM loads),
placed AS (SELECT *, row_number() OVER (PARTITION BY day, resource ORDER BY load, bundle) AS place,
                  count(*) OVER (PARTITION BY day, resource) AS n FROM kinds)
SELECT day, resource, n, 2 * sum(place * load) / (n * sum(load)) - (n + 1) / n AS gini,
       sum(CASE WHEN place > n - 1 THEN load ELSE 0 END) / sum(load) AS top_1,
       sum(CASE WHEN place > n - 10 THEN load ELSE 0 END) / sum(load) AS top_10,
       sum(CASE WHEN place > n - ceil(n / 100) THEN load ELSE 0 END) / sum(load) AS top_percent
FROM placed GROUP BY day, resource, n HAVING sum(load) > 0"""

HOURS = f"""
WITH whole AS ({CLUSTER}), ends AS (SELECT epoch(min(minute))::BIGINT // 3600 AS first,
            epoch(max(minute))::BIGINT // 3600 AS last FROM bundle_minute WHERE covered_s > 0),
loads AS (SELECT bundle, epoch(minute)::BIGINT // 3600 AS hour, {LOADS}
          FROM bundle_minute WHERE covered_s > 0 GROUP BY 1, 2)
SELECT bundle, hour, CASE WHEN measured THEN l0 ELSE c0 * l4 / c4 END / covered_s AS load, first, last
FROM loads, whole, ends"""


def by_series(work: Callable[[Series], Table]) -> Answer:
    """Numpy on the hourly series of all bundles."""

    def run(db: duckdb.DuckDBPyConnection) -> int:
        table = db.sql(HOURS).to_arrow_table()
        names, at = np.unique(table.column("bundle").to_numpy(), return_inverse=True)
        first, last = table.column("first")[0].as_py(), table.column("last")[0].as_py()
        values = np.full((len(names), last - first + 1), np.nan)
        values[at, table.column("hour").to_numpy() - first] = table.column("load").to_numpy()
        return work(Series(names.tolist(), first, values)).num_rows

    return run


GAPS = f"""
WITH edges AS (
    SELECT *, CASE WHEN state_before IS NULL OR state IS NULL THEN 'outside'
                   WHEN state_before IN {SERVED} AND NOT state IN {SERVED} THEN 'stop'
                   WHEN NOT state_before IN {SERVED} AND state IN {SERVED} THEN 'start' END AS edge,
           last_value(CASE WHEN action IN ('transfer', 'unload', 'revoke') THEN {{'action': action, 'role': role,
                      'actor': actor, 'cause': cause, 'at': appended_at}} END IGNORE NULLS) OVER along AS begun
    FROM transition WINDOW along AS (PARTITION BY partition, bundle ORDER BY "offset", ordinal
                                     ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)),
followed AS (
    SELECT *, lead({{'edge': edge, 'at': appended_at, 'holder': holder, 'number': holder_incarnation}})
              OVER (PARTITION BY partition, bundle ORDER BY "offset", ordinal) AS next
    FROM edges WHERE edge IS NOT NULL),
gaps AS (
    SELECT bundle, namespace, begun.action AS how, nullif(begun.cause, '') AS decision, begun.role AS role,
           begun.actor AS actor, holder_before AS source, holder_before_incarnation AS source_incarnation,
           CASE WHEN next.edge = 'start' THEN next.holder END AS destination,
           CASE WHEN next.edge = 'start' THEN next.number END AS destination_incarnation, begun.at AS began_at,
           appended_at AS stopped_at, CASE WHEN next.edge = 'start' THEN next.at END AS served_at
    FROM followed WHERE edge = 'stop')"""
MOVES = (
    GAPS
    + """,
promised AS (SELECT DISTINCT ON (decision, bundle) decision, bundle, stage, gain FROM move),
moves AS (
    SELECT gaps.*, stage, gain, (epoch_us(served_at) - epoch_us(stopped_at)) / 1e6 AS gap_s,
           (epoch_us(served_at) - epoch_us(began_at)) / 1e6 AS duration_s
    FROM gaps LEFT JOIN promised USING (decision, bundle) WHERE served_at IS NOT NULL),
lefts AS (
    SELECT *, list(CASE WHEN how <> 'revoke' THEN source END) OVER (PARTITION BY bundle ORDER BY epoch_us(served_at)
                   RANGE BETWEEN 1800000000 PRECEDING AND CURRENT ROW) AS was FROM moves),
transfers AS (
    SELECT *, how <> 'revoke' AND source <> destination AND list_contains(was, destination) AS returned,
           CASE WHEN how = 'revoke' THEN 'failover' ELSE coalesce(stage, role) END AS why FROM lefts)"""
)
STATES = """
WITH last AS (SELECT max(appended_at) AS final FROM transition),
stays AS (SELECT bundle, state, appended_at, lead(appended_at) OVER (PARTITION BY partition, bundle
                 ORDER BY "offset", ordinal) AS until FROM transition),
timed AS (SELECT bundle, state, until IS NULL AS open,
                 (epoch_us(coalesce(until, final)) - epoch_us(appended_at)) / 1e6 AS seconds
          FROM stays, last WHERE state IS NOT NULL)
SELECT state, count(*), count(DISTINCT bundle), sum(seconds), sum(seconds) / sum(sum(seconds)) OVER () AS part,
       quantile_cont(CASE WHEN NOT open THEN seconds END, [0.5, 0.9, 0.99]), max(CASE WHEN NOT open THEN seconds END)
FROM timed GROUP BY state"""

X = ("1.0", f"({IN_MSG}) / 1000", f"({OUT_MSG}) / 1000", f"({IN}) / 1048576", f"({OUT}) / 1048576",
     SOUND.format("bundles"))  # fmt: skip
PAIRS = [(i, j) for i in range(len(X)) for j in range(i, len(X))]
CAPACITY = f"""
WITH terms AS (SELECT broker, round({CORES}, 2) AS cores,
                      round(coalesce(capacity['memory_bytes'] / 1073741824, 0))::BIGINT AS memory, covered_s / 60 AS w,
                      ({CPU}) / 100 * {CORES} AS y, {", ".join(f"{x} AS x{n}" for n, x in enumerate(X))}
               FROM broker_minute WHERE covered_s > 0)
SELECT cores, memory, {", ".join(f"sum(w * x{i} * x{j}) AS g{i}_{j}" for i, j in PAIRS)},
       {", ".join(f"sum(w * x{i} * y) AS c{i}" for i in range(len(X)))}, sum(w * y * y) AS squares, sum(w * y) AS total,
       sum(w) AS weight, count(*) AS minutes, approx_count_distinct(broker) AS brokers FROM terms GROUP BY ALL"""


def capacity(db: duckdb.DuckDBPyConnection) -> int:
    """The normal equations in SQL, and the same regression."""
    kinds = db.sql(CAPACITY).to_arrow_table().to_pylist()
    for kind in kinds:
        gram = np.zeros((len(X), len(X)))
        for i, j in PAIRS:
            gram[i, j] = gram[j, i] = kind[f"g{i}_{j}"]
        cross = np.array([kind[f"c{i}"] for i in range(len(X))])
        fit(Sums(gram, cross, kind["squares"], kind["total"], kind["weight"]))
    return len(kinds) * len(X)


COUNTS = f"""
WITH whole AS ({CLUSTER}),
hours AS (SELECT bundle, epoch(minute)::BIGINT // 3600 AS hour, {LOADS},
                 sum(covered_s * ({SOUND.format("keys")})) AS keys,
                 sum(covered_s * ({SOUND.format("sessions")})) AS sessions
          FROM bundle_minute WHERE covered_s > 0 GROUP BY 1, 2),
bundles AS (SELECT bundle, sum(covered_s) AS covered, sum(l0) AS cpu, max(keys / covered_s) AS keys,
                   max(sessions / covered_s) AS sessions, max(l4 / covered_s) AS messages,
                   max((l2 + l3) / covered_s) AS bytes FROM hours GROUP BY bundle),
sized AS (SELECT *, bundle[:length(bundle) - 22] AS namespace, split_part(bundle, '/', 3) AS edges,
                 cpu / covered * time / room AS size, c0 / room * {DEFAULTS.tolerance} AS allowed,
                 greatest(keys / 1000, sessions / 1000, messages / 30000, bytes / 104857600) AS fill
          FROM bundles, whole),
parted AS (SELECT *, least(32, greatest(CASE WHEN size > allowed THEN ceil(size / allowed) ELSE 1 END,
                                        CASE WHEN fill > 1 THEN ceil(fill / 0.75) ELSE 1 END)) AS parts,
                  split_part(edges, '_', 1) AS low, split_part(edges, '_', 2) AS high FROM sized),
cold AS (SELECT *, fill < 0.1 AND parts = 1 AS cold FROM parted),
runs AS (SELECT *, CASE WHEN cold AND lag(cold) OVER s AND lag(high) OVER s = low THEN 0 ELSE 1 END AS begins
         FROM cold WINDOW s AS (PARTITION BY namespace ORDER BY low)),
numbered AS (SELECT *, sum(begins) OVER (PARTITION BY namespace ORDER BY low) AS run FROM runs),
merged AS (SELECT namespace, run, any_value(cold) AS cold, count(*) AS measured, max(size) AS largest,
                  sum(parts - 1) AS parts, count_if(fill > 1) AS over_limits, count_if(size > allowed) AS too_large,
                  greatest(0, count(*) - greatest(1, ceil(greatest(sum(keys) / 1000, sum(sessions) / 1000,
                           sum(messages) / 30000, sum(bytes) / 104857600) / 0.1))) AS merges
           FROM numbered GROUP BY namespace, run),
there AS (SELECT namespace, count(*) AS existing FROM (
              SELECT partition, bundle, namespace, arg_max(state, ("offset", ordinal)) AS state
              FROM transition GROUP BY ALL) WHERE state IS NOT NULL GROUP BY namespace)
SELECT namespace, sum(measured), max(existing), max(largest), sum(parts), sum(CASE WHEN cold THEN merges ELSE 0 END),
       sum(too_large), sum(over_limits) FROM merged LEFT JOIN there USING (namespace) GROUP BY namespace"""

ANSWERS: dict[str, Answer] = {
    "imbalance": rows_of(IMBALANCE),
    "hot_bundles": rows_of(HOT),
    "skew": rows_of(SKEW),
    "seasonality": by_series(found),
    "forecast": by_series(lambda series: forecast_of(series, DEFAULTS.horizon_h)),
    "forecast_error": by_series(errors_of),
    "transfers": rows_of(f"{MOVES} SELECT * FROM transfers"),
    "gaps": rows_of(
        f"""{MOVES} SELECT how, why, count(*), count(DISTINCT bundle), count_if(returned), max(gap_s), sum(gap_s),
        quantile_cont(gap_s, [0.5, 0.9, 0.99]), median(duration_s) FROM transfers GROUP BY ALL"""
    ),
    "churn": rows_of(
        f"""{MOVES} SELECT epoch(served_at)::BIGINT // 86400 AS day, count_if(how <> 'revoke'),
        count_if(how = 'revoke'), count(DISTINCT bundle), count(DISTINCT CASE WHEN how <> 'revoke' THEN bundle END),
        count_if(returned), sum(gap_s) FROM transfers GROUP BY day"""
    ),
    "outages": rows_of(f"{GAPS} SELECT * FROM gaps"),
    "time_in_state": rows_of(STATES),
    "capacity": capacity,
    "bundle_count": rows_of(COUNTS),
}
"""Those that are compared; the others are small, or made of these."""
