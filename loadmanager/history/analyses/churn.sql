-- Churn
-- reads: transfers
-- order: day
--
-- One row per day (UTC) with a move: `planned` moves and `failovers`, the number of different `bundles` in them,
-- planned moves per moved bundle, `returned` and their part of the planned moves, and `gap_s` summed over all.
WITH days AS (
    SELECT CAST(floor(unix_micros(t.served_at) / 86400e6) AS bigint) AS number,
           CAST(count_if(t.how <> 'failover') AS bigint) AS planned,
           CAST(count_if(t.how = 'failover') AS bigint) AS failovers,
           count(DISTINCT t.bundle) AS bundles,
           count(DISTINCT CASE WHEN t.how <> 'failover' THEN t.bundle END) AS by_plan,
           CAST(count_if(t.returned) AS bigint) AS returned,
           sum(t.gap_s) AS gap_s
    FROM transfers t
    GROUP BY CAST(floor(unix_micros(t.served_at) / 86400e6) AS bigint)
)
SELECT timestamp_seconds(d.number * 86400) AS day, d.planned, d.failovers, d.bundles,
       d.planned / nullif(d.by_plan, 0) AS planned_a_bundle, d.returned,
       d.returned / nullif(d.planned, 0) AS returned_part, d.gap_s
FROM days d
