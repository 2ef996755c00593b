-- Gaps of transfers
-- reads: transfers
-- order: how, why
--
-- How long no broker served a bundle in a move: one row per `how` and `why`. `moves`, `bundles`, `returned`, the gap's
-- percentiles (linear between neighbouring values), `max_s` and `sum_s`, and `duration_p50_s` of the whole move.
SELECT t.how, t.why, count(*) AS moves, count(DISTINCT t.bundle) AS bundles,
       CAST(count_if(t.returned) AS bigint) AS returned,
       percentile(t.gap_s, 0.5) AS p50_s, percentile(t.gap_s, 0.9) AS p90_s, percentile(t.gap_s, 0.99) AS p99_s,
       max(t.gap_s) AS max_s, sum(t.gap_s) AS sum_s, percentile(t.duration_s, 0.5) AS duration_p50_s
FROM transfers t
GROUP BY t.how, t.why
