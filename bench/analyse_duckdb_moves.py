"""SQL for DuckDB: the analyses of the channel's record and of decisions, with the defaults, of all there is."""

from __future__ import annotations

from bench.analyse_duckdb_loads import IMBALANCE
from loadmanager.history.analyses.analysis import DEFAULTS

SERVED = "('assigned', 'transferring', 'splitting')"
ALONG = 'PARTITION BY partition, bundle ORDER BY "offset", ordinal'


def seconds(begin: str, end: str) -> str:
    return f"greatest(0.0, (epoch_us({end}) - epoch_us({begin})) / 1e6)"


def percentiles(value: str) -> str:
    return ", ".join(f"quantile_cont({value}, {each / 100}) AS p{each}_s" for each in (50, 90, 99))


EDGES = f"""edges AS (
    SELECT *, CASE WHEN state_before IS NULL OR state IS NULL THEN 'outside'
                   WHEN state_before IN {SERVED} AND NOT state IN {SERVED} THEN 'stop'
                   WHEN NOT state_before IN {SERVED} AND state IN {SERVED} THEN 'start' END AS edge,
           last_value(CASE WHEN action IN ('transfer', 'unload', 'revoke') THEN {{'action': action, 'role': role,
                      'actor': actor, 'cause': cause, 'at': appended_at}} END IGNORE NULLS) OVER so_far AS begun
    FROM transition WINDOW so_far AS ({ALONG} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))"""
STOPS = f"""{EDGES},
followed AS (
    SELECT *, lead({{'edge': edge, 'at': appended_at, 'holder': holder, 'number': holder_incarnation}})
              OVER ({ALONG}) AS next
    FROM edges WHERE edge IS NOT NULL),
stops AS (
    SELECT bundle, namespace, CASE begun.action WHEN 'revoke' THEN 'failover' ELSE begun.action END AS how,
           nullif(begun.cause, '') AS decision, begun.role AS role,
           begun.actor AS actor, holder_before AS source, holder_before_incarnation AS source_incarnation,
           CASE WHEN next.edge = 'start' THEN next.holder END AS destination,
           CASE WHEN next.edge = 'start' THEN next.number END AS destination_incarnation, begun.at AS began_at,
           appended_at AS stopped_at, CASE WHEN next.edge = 'start' THEN next.at END AS served_at,
           CASE WHEN next.edge = 'outside' THEN next.at END AS deleted_at
    FROM followed WHERE edge = 'stop')"""
MOVED = f"""{STOPS},
promised AS (SELECT decision, bundle, max_by({{'stage': stage, 'gain': gain}},
                    (coalesce(outcome = 'begun', false), -ordinal, -"offset")) AS one FROM move GROUP BY ALL),
moves AS (
    SELECT stops.*, one.stage AS stage, one.gain AS gain, {seconds("stopped_at", "served_at")} AS gap_s,
           {seconds("began_at", "served_at")} AS duration_s
    FROM stops LEFT JOIN promised USING (decision, bundle) WHERE served_at IS NOT NULL),
lefts AS (
    SELECT *, list(source) FILTER (how <> 'failover') OVER (PARTITION BY bundle ORDER BY epoch_us(served_at)
                   RANGE BETWEEN {round(DEFAULTS.rest_s * 1e6)} PRECEDING AND CURRENT ROW) AS was FROM moves),
transfers AS (
    SELECT bundle, namespace, how,
           CASE WHEN how = 'failover' THEN how WHEN stage IS NOT NULL THEN stage WHEN role = 'admin' THEN 'admin'
                WHEN role = 'broker' THEN 'handed over' ELSE 'leader' END AS why,
           decision, actor, source, source_incarnation, destination, destination_incarnation, began_at, stopped_at,
           served_at, gap_s, duration_s,
           how <> 'failover' AND source <> destination AND coalesce(list_contains(was, destination), false) AS returned,
           gain FROM lefts)"""

TRANSFERS = f"WITH {MOVED} SELECT * FROM transfers"
GAPS = f"""WITH {MOVED}
SELECT how, why, count(*) AS moves, count(DISTINCT bundle) AS bundles, count_if(returned)::BIGINT AS returned,
       {percentiles("gap_s")}, max(gap_s) AS max_s, sum(gap_s) AS sum_s,
       quantile_cont(duration_s, 0.5) AS duration_p50_s
FROM transfers GROUP BY how, why"""
CHURN = f"""WITH {MOVED},
days AS (SELECT epoch(served_at)::BIGINT // 86400 AS number, count_if(how <> 'failover')::BIGINT AS planned,
                count_if(how = 'failover')::BIGINT AS failovers, count(DISTINCT bundle) AS bundles,
                count(DISTINCT CASE WHEN how <> 'failover' THEN bundle END) AS by_plan,
                count_if(returned)::BIGINT AS returned, sum(gap_s) AS gap_s FROM transfers GROUP BY 1)
SELECT to_timestamp(number * 86400) AS day, planned, failovers, bundles,
       CASE WHEN by_plan > 0 THEN planned / by_plan END AS planned_a_bundle, returned,
       CASE WHEN planned > 0 THEN returned / planned END AS returned_part, gap_s FROM days"""
OUTAGES = f"""WITH {STOPS}
SELECT bundle, namespace, how, decision, actor, source, source_incarnation, destination, destination_incarnation,
       stopped_at AS began_at, coalesce(served_at, deleted_at) AS ended_at,
       CASE WHEN coalesce(served_at, deleted_at) IS NOT NULL
            THEN {seconds("stopped_at", "coalesce(served_at, deleted_at)")} END AS seconds FROM stops"""
OWNED = f"""last AS (SELECT max(appended_at) AS final FROM transition),
stays AS (SELECT *, lead(appended_at) OVER ({ALONG}) AS next FROM transition),
owned AS (SELECT bundle, namespace, state, holder, holder_incarnation AS incarnation, target, appended_at AS since,
                 greatest(appended_at, coalesce(next, final)) AS until,
                 {seconds("appended_at", "coalesce(next, final)")} AS seconds, next IS NULL AS open
          FROM stays, last WHERE state IS NOT NULL)"""
OWNERSHIP = f"WITH {OWNED} SELECT * FROM owned"
TIME_IN_STATE = f"""WITH {OWNED}
SELECT state, count(*) AS stays, count(DISTINCT bundle) AS bundles, sum(seconds) AS seconds,
       sum(seconds) / sum(sum(seconds)) OVER () AS part, {percentiles("CASE WHEN NOT open THEN seconds END")},
       max(CASE WHEN NOT open THEN seconds END) AS max_s
FROM owned GROUP BY state"""
FAILOVERS = f"""WITH {EDGES},
ended AS (SELECT *, first_value(CASE WHEN edge IN ('start', 'outside') THEN {{'edge': edge, 'at': appended_at}} END
                     IGNORE NULLS) OVER ({ALONG} ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS ending
          FROM edges),
revoked AS (SELECT holder_before AS broker, holder_before_incarnation AS incarnation, bundle, appended_at, actor,
                   CASE WHEN ending.edge = 'start' THEN ending.at END AS served_at,
                   CASE WHEN ending.edge = 'start' THEN {seconds("appended_at", "ending.at")} END AS took_s
            FROM ended WHERE action = 'revoke'),
starts AS (SELECT holder, holder_incarnation AS number, min(appended_at) AS since FROM transition
           WHERE holder IS NOT NULL GROUP BY 1, 2),
deaths AS (SELECT broker, incarnation, min(appended_at) AS revoked_at, min_by(actor, appended_at) AS leader,
                  count(DISTINCT bundle) AS bundles,
                  count(DISTINCT CASE WHEN served_at IS NOT NULL THEN bundle END) AS served,
                  max(served_at) AS restored_at, {percentiles("took_s")}, max(took_s) AS max_s
           FROM revoked GROUP BY broker, incarnation),
backs AS (SELECT broker, incarnation, min(since) AS back_at FROM deaths
          JOIN starts ON holder = broker AND number > incarnation GROUP BY broker, incarnation)
SELECT deaths.*, back_at FROM deaths LEFT JOIN backs USING (broker, incarnation)"""
LEADERS = f"""WITH epochs AS (
    SELECT epoch, min({{'at': appended_at, 'actor': actor, 'number': actor_incarnation}}) AS first,
           max(appended_at) AS last, count(DISTINCT partition) AS partitions
    FROM channel WHERE action = 'lead' AND verdict = 'accepted' GROUP BY epoch),
terms AS (SELECT epoch, first.actor AS leader, first.number AS incarnation, first.at AS since, partitions,
                 {seconds("first.at", "last")} AS took_s, lead(first.at) OVER (ORDER BY epoch) AS until FROM epochs)
SELECT *, CASE WHEN until IS NOT NULL THEN {seconds("since", "until")} END AS seconds FROM terms"""

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
