"""SQL for DuckDB: the analyses of loads, with the defaults, of all there is."""

from __future__ import annotations

from loadmanager.history.analyses.analysis import DEFAULTS
from loadmanager.history.analyses.figures import counted
from loadmanager.model.boundaries import MOST_PARTS
from loadmanager.model.load import CAPACITIES, RESOURCES
from loadmanager.strategies.playground.bounds import IDLE
from loadmanager.strategies.splitting.splits import FILL_AIMED_AT

COUNTED = counted(DEFAULTS.weights)
WEIGHTS = DEFAULTS.weights.row
OF_BUNDLES = (0, 2, 3, 4)
"""CPU, bytes in, bytes out, messages."""


def sound(name: str) -> str:
    return f"CASE WHEN {name} >= 0 AND {name} < 'infinity'::DOUBLE THEN {name} ELSE 0.0 END"


CPU, IN, OUT, IN_MSG, OUT_MSG = (
    f"({sound(name)})"
    for name in ("cpu_percent", "in_rate_bytes_s", "out_rate_bytes_s", "in_rate_msg_s", "out_rate_msg_s")
)
KNOWN_CPU = "(cpu_percent >= 0 AND cpu_percent < 'infinity'::DOUBLE)"
SAID = [
    f"(CASE WHEN capacity['{name}'] > 0 AND capacity['{name}'] < 'infinity'::DOUBLE THEN capacity['{name}'] END)"
    for name in CAPACITIES
]
ROOM = [f"coalesce({SAID[0]}, 1.0)", *SAID[1:]]
USED = [
    f"({CPU} / 100 * {ROOM[0]})",
    f"({sound('memory_percent')} / 100 * {ROOM[1]})",
    IN,
    OUT,
    f"({IN_MSG} + {OUT_MSG})",
]
LOADS = f"""sum(covered_s) AS covered_s, sum(covered_s * {CPU} / 100) AS l0, sum(covered_s * {IN}) AS l2,
    sum(covered_s * {OUT}) AS l3, sum(covered_s * ({IN_MSG} + {OUT_MSG})) AS l4"""
SPACE = "split_part(bundle, '/', 1) || '/' || split_part(bundle, '/', 2)"
GONE = """gone AS (SELECT bundle FROM (SELECT partition, bundle, max_by(state IS NULL, ("offset", ordinal)) AS gone
    FROM transition GROUP BY partition, bundle) WHERE gone)"""


def over(part: str, whole: str) -> str:
    return f"CASE WHEN {whole} > 0 THEN {part} / {whole} END"


_PARTS = ", ".join(
    f"sum(covered_s * {USED[n]}) AS c{n}, sum(covered_s * {ROOM[n]}) AS room{n}, "
    f"bool_and({ROOM[n]} IS NOT NULL) AS known{n}"
    for n in OF_BUNDLES
)
_UNITS = ", ".join(
    f"CASE WHEN known{n} AND room{n} > 0 THEN {WEIGHTS[n]} * time / room{n} END AS unit{n}" for n in OF_BUNDLES
)
_EVENS = ", ".join(f"CASE WHEN known{n} AND room{n} > 0 THEN {WEIGHTS[n]} * c{n} / room{n} END" for n in COUNTED)
WHOLE = f"""sums AS (SELECT sum(covered_s) AS time, {_PARTS} FROM broker_minute WHERE covered_s > 0),
whole AS (SELECT coalesce((SELECT bool_or({CPU} > 0) FROM bundle_total), true) AS measured, c0, c2, c3, c4,
                 {_UNITS}, greatest(0.0, {_EVENS}) AS even FROM sums)"""
CPU_OF = f"""(CASE WHEN measured THEN l0 ELSE coalesce(c0 * coalesce({over("l4", "c4")},
    {over("(l2 + l3)", "(c2 + c3)")}), 0) END)"""
SIZE = "coalesce(greatest(" + ", ".join(f"l{n} / covered_s * unit{n}" for n in OF_BUNDLES) + "), 0)"


def _sums(tag: str) -> str:
    return f"""sum(CASE WHEN u{tag} IS NOT NULL THEN covered_s END) AS time{tag},
        sum(covered_s * u{tag}) AS sum{tag}, sum(covered_s * u{tag} * u{tag}) AS squares{tag},
        max(CASE WHEN u{tag} IS NOT NULL THEN {{'u': u{tag}, 'c': covered_s, 'b': broker}} END) AS top{tag}"""


def _kind(name: str, tag: str, even: str) -> str:
    allowed = f"greatest({IDLE}, {1 + DEFAULTS.tolerance} * even)"
    return f"""SELECT minute, '{name}' AS resource, time{tag} / 60 AS brokers, sum{tag} / time{tag} AS mean,
        sqrt(greatest(0.0, squares{tag} / time{tag} - mean * mean)) AS std, top{tag}.u AS max,
        coalesce(CASE WHEN mean > 0 THEN top{tag}.u / mean END, 1.0) AS max_over_mean, top{tag}.b AS broker,
        {even} AS even, {allowed} AS allowed, CASE WHEN top{tag}.u > {allowed} THEN top{tag}.c ELSE 0.0 END AS above_s
        FROM sums WHERE time{tag} > 0"""


_EVEN = {n: f"(CASE WHEN room{n} > 0 THEN {WEIGHTS[n]} * load{n} / room{n} END)" for n in COUNTED}
_KINDS = [_kind(RESOURCES[n], str(n), _EVEN[n]) for n in COUNTED]
_KINDS.append(_kind("fullest", "", f"greatest(0.0, {', '.join(_EVEN.values())})"))
IMBALANCE = f"""
WITH used AS (SELECT minute, broker, covered_s, {", ".join(f"{USED[n]} AS x{n}, {ROOM[n]} AS r{n}" for n in COUNTED)}
              FROM broker_minute WHERE covered_s > 0),
usages AS (SELECT *, {", ".join(f"{WEIGHTS[n]} * x{n} / r{n} AS u{n}" for n in COUNTED)},
                  greatest(0.0, {", ".join(f"u{n}" for n in COUNTED)}) AS u FROM used),
sums AS (SELECT minute, {_sums("")}, {", ".join(_sums(str(n)) for n in COUNTED)},
                {", ".join(f"sum(CASE WHEN r{n} IS NOT NULL THEN covered_s * x{n} END) AS load{n}" for n in COUNTED)},
                {", ".join(f"sum(covered_s * r{n}) AS room{n}" for n in COUNTED)} FROM usages GROUP BY minute)
{" UNION ALL ".join(_KINDS)}"""

_BY_TITLE = sorted(OF_BUNDLES, key=lambda n: RESOURCES[n], reverse=True)
HOT_BUNDLES = f"""
WITH {WHOLE}, loads AS (SELECT bundle, {LOADS} FROM bundle_minute WHERE covered_s > 0 GROUP BY bundle),
filled AS (SELECT loads.* REPLACE ({CPU_OF} AS l0), whole.* FROM loads, whole),
parts AS (SELECT *, {", ".join(f"coalesce({over(f'l{n}', f'c{n}')}, 0.0) AS s{n}" for n in OF_BUNDLES)} FROM filled),
shares AS (SELECT bundle, {SPACE} AS namespace, covered_s, l0 / covered_s AS cores, l2 / covered_s AS in_rate_bytes_s,
                  l3 / covered_s AS out_rate_bytes_s, l4 / covered_s AS rate_msg_s,
                  greatest({", ".join(f"s{n}" for n in OF_BUNDLES)}) AS share,
                  CASE {" ".join(f"WHEN s{n} = share THEN '{RESOURCES[n]}'" for n in _BY_TITLE)} END AS resource,
                  {SIZE} AS size FROM parts ORDER BY share DESC, bundle LIMIT {DEFAULTS.top})
SELECT row_number() OVER (ORDER BY share DESC, bundle) AS rank, *,
       sum(share) OVER (ORDER BY share DESC, bundle ROWS UNBOUNDED PRECEDING) AS cumulative FROM shares"""

SKEW = f"""
WITH loads AS (SELECT epoch(minute)::BIGINT // 86400 AS number, bundle, {LOADS}
               FROM bundle_minute WHERE covered_s > 0 GROUP BY 1, 2),
kinds AS (SELECT number, bundle, unnest([{", ".join(f"'{RESOURCES[n]}'" for n in OF_BUNDLES)}]) AS resource,
                 unnest([{", ".join(f"l{n}" for n in OF_BUNDLES)}]) AS load FROM loads),
placed AS (SELECT *, row_number() OVER (PARTITION BY number, resource ORDER BY load, bundle) AS place,
                  count(*) OVER (PARTITION BY number, resource) AS n FROM kinds)
SELECT to_timestamp(number * 86400) AS day, resource, n AS bundles,
       greatest(0.0, 2 * sum(place * load) / (n * sum(load)) - (n + 1) / n) AS gini,
       sum(CASE WHEN place > n - 1 THEN load ELSE 0 END) / sum(load) AS top_1,
       sum(CASE WHEN place > n - 10 THEN load ELSE 0 END) / sum(load) AS top_10,
       sum(CASE WHEN place > n - ceil(n / 100) THEN load ELSE 0 END) / sum(load) AS top_1_percent
FROM placed GROUP BY number, resource, n HAVING sum(load) > 0"""

HOURS = f"""
WITH {WHOLE}, {GONE}, ends AS (SELECT epoch(min(minute))::BIGINT // 3600 AS first,
            epoch(max(minute))::BIGINT // 3600 AS last FROM bundle_minute WHERE covered_s > 0),
loads AS (SELECT bundle, epoch(minute)::BIGINT // 3600 AS hour, {LOADS}
          FROM bundle_minute WHERE covered_s > 0 GROUP BY 1, 2)
SELECT bundle, hour, {CPU_OF} / covered_s AS load, first, last FROM loads, whole, ends {{rest}}"""

_X = ("1.0", f"{IN_MSG} / 1000", f"{OUT_MSG} / 1000", f"{IN} / 1048576", f"{OUT} / 1048576", sound("bundles"))
_PAIRS = [(i, j) for i in range(len(_X)) for j in range(i, len(_X))]
CAPACITY = f"""
WITH terms AS (SELECT broker, round({ROOM[0]}, 2) AS cores,
                      round(coalesce({ROOM[1]} / 1073741824, 0))::BIGINT AS memory_gib, covered_s / 60 AS w,
                      {USED[0]} AS y, {", ".join(f"{x} AS x{n}" for n, x in enumerate(_X))}
               FROM broker_minute WHERE covered_s > 0 AND {KNOWN_CPU})
SELECT cores, memory_gib, {", ".join(f"sum(w * x{i} * x{j}) AS g{i}_{j}" for i, j in _PAIRS)},
       {", ".join(f"sum(w * x{i} * y) AS c{i}" for i in range(len(_X)))},
       sum(w * y * y) AS squares, sum(w * y) AS total, sum(w) AS weight, count(*) AS minutes,
       count(DISTINCT broker) AS brokers FROM terms GROUP BY cores, memory_gib"""

_LIMITS = {
    "keys": DEFAULTS.limits.keys,
    "sessions": DEFAULTS.limits.sessions,
    "messages": DEFAULTS.limits.rate_msg_s,
    "bytes": DEFAULTS.limits.bandwidth_bytes_s,
}


def _fill(value: str) -> str:
    return f"greatest(0.0, {', '.join(value.format(name) + f' / {limit}' for name, limit in _LIMITS.items())})"


BUNDLE_COUNT = f"""
WITH {WHOLE}, {GONE},
hours AS (SELECT bundle, epoch(minute)::BIGINT // 3600 AS hour, {LOADS},
                 sum(covered_s * ({sound("keys")})) AS keys, sum(covered_s * ({sound("sessions")})) AS sessions
          FROM bundle_minute WHERE covered_s > 0 GROUP BY 1, 2),
bundles AS (SELECT bundle, sum(covered_s) AS covered_s, sum(l0) AS l0, sum(l2) AS l2, sum(l3) AS l3, sum(l4) AS l4,
                   max(keys / hours.covered_s) AS keys, max(sessions / hours.covered_s) AS sessions,
                   max(hours.l4 / hours.covered_s) AS messages,
                   max((hours.l2 + hours.l3) / hours.covered_s) AS bytes
            FROM hours WHERE bundle NOT IN (FROM gone) GROUP BY bundle),
filled AS (SELECT bundles.* REPLACE ({CPU_OF} AS l0), whole.* FROM bundles, whole),
sized AS (SELECT *, {SPACE} AS namespace, {SIZE} AS size,
                 CASE WHEN even >= {IDLE} THEN even * {DEFAULTS.tolerance} END AS allowed, {_fill("{}")} AS fill,
                 split_part(split_part(bundle, '/', -1), '_', 1) AS low,
                 split_part(split_part(bundle, '/', -1), '_', 2) AS high FROM filled),
parted AS (SELECT *, least({MOST_PARTS}, greatest(
               CASE WHEN size > allowed THEN ceil(size / allowed) ELSE 1 END,
               CASE WHEN fill > 1 THEN ceil(fill / {FILL_AIMED_AT}) ELSE 1 END))::BIGINT AS parts FROM sized),
cold AS (SELECT *, fill < {DEFAULTS.merge_below} AND parts = 1 AS cold FROM parted),
begun AS (SELECT *, CASE WHEN cold AND lag(cold) OVER s AND lag(high) OVER s = low THEN 0 ELSE 1 END AS begins
          FROM cold WINDOW s AS (PARTITION BY namespace ORDER BY low)),
numbered AS (SELECT *, sum(begins) OVER (PARTITION BY namespace ORDER BY low) AS run FROM begun),
merged AS (SELECT namespace, run, any_value(cold) AS cold, count(*) AS measured, max({{'s': size, 'b': bundle}}) AS top,
                  sum(parts - 1) AS parts, count_if(fill > 1) AS over_limits, count_if(size > allowed) AS too_large,
                  any_value(allowed) AS allowed,
                  CASE WHEN cold THEN greatest(0, count(*) - greatest(1, ceil({_fill("sum({})")}
                      / {DEFAULTS.merge_below}))) ELSE 0 END AS merges
           FROM numbered GROUP BY namespace, run, cold),
existing AS (SELECT {SPACE} AS namespace, count(*) AS existing FROM (
                 SELECT partition, bundle, max_by(state IS NOT NULL, ("offset", ordinal)) AS there
                 FROM transition GROUP BY partition, bundle) WHERE there GROUP BY 1),
spaces AS (SELECT namespace, sum(measured) AS measured, max(top) AS top, any_value(allowed) AS allowed,
                  sum(too_large) AS too_large, sum(over_limits) AS over_limits, sum(parts) AS parts,
                  sum(merges) AS merges FROM merged GROUP BY namespace),
counted AS (SELECT *, greatest(existing, measured) AS bundles,
                   bundles + CASE WHEN parts > 0 THEN parts ELSE -merges END AS wanted
            FROM spaces LEFT JOIN existing USING (namespace)),
advised AS (SELECT *, least(greatest(bundles, {DEFAULTS.namespace_max_bundles}),
                            greatest(least(bundles, {DEFAULTS.namespace_min_bundles}), wanted)) AS advised FROM counted)
SELECT namespace, bundles::BIGINT AS bundles, measured::BIGINT AS measured, top.s AS largest, top.b AS bundle, allowed,
       too_large::BIGINT AS too_large, over_limits::BIGINT AS over_limits, parts::BIGINT AS parts,
       merges::BIGINT AS merges, advised::BIGINT AS advised,
       CASE WHEN advised > bundles THEN 'split' WHEN advised < bundles THEN 'merge' ELSE 'keep' END AS advice
FROM advised"""

_COUNT = max(1, round(DEFAULTS.settle_s / 60))
_SHIFTS = [*range(1, _COUNT + 1), *range(-_COUNT - 1, -1)]
"""From a minute to those whose decisions it tells of: what was before them, and after."""
BENEFIT = f"""WITH spreads AS (
    SELECT epoch(minute)::BIGINT // 60 AS minute, max_over_mean - 1 AS spread
    FROM ({IMBALANCE}) WHERE resource = 'fullest'),
about AS (SELECT minute + unnest({_SHIFTS}) AS number, minute, spread
          FROM spreads),
decided AS (SELECT DISTINCT ON (id) *, epoch("at")::BIGINT // 60 AS number FROM decision WHERE begun > 0),
around AS (SELECT id, avg(spread) FILTER (minute < decided.number) AS measured_before,
                    avg(spread) FILTER (minute > decided.number) AS measured_after
             FROM decided LEFT JOIN about ON about.number = decided.number GROUP BY id),
gains AS (SELECT decision AS id, sum(gain) AS gain FROM (
              SELECT DISTINCT ON (decision, bundle) * FROM move WHERE outcome = 'begun') GROUP BY decision)
SELECT id, "at", strategy, moves, begun, spread_before AS predicted_before, spread_after AS predicted_after,
       measured_before, measured_after, spread_before - spread_after AS predicted,
       measured_before - measured_after AS measured,
       CASE WHEN predicted > 1e-9 THEN measured / predicted END AS kept, gain
FROM decided JOIN around USING (id) LEFT JOIN gains USING (id)"""
