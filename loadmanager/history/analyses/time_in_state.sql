-- Time in each state
-- reads: ownership
-- order: state
--
-- Where bundles rest, and where moves spend their time: one row per state. `stays` and `bundles`, `seconds` in all and
-- their `part`, and percentiles of the stays that have ended. A stay that the window's begin cuts counts with the rest
-- of its length.
WITH stays AS (SELECT o.*, CASE WHEN NOT o.open THEN o.seconds END AS ended_s FROM ownership o)
SELECT s.state, count(*) AS stays, count(DISTINCT s.bundle) AS bundles, sum(s.seconds) AS seconds,
       sum(s.seconds) / nullif(sum(sum(s.seconds)) OVER (), 0) AS part,
       percentile(s.ended_s, 0.5) AS p50_s, percentile(s.ended_s, 0.9) AS p90_s, percentile(s.ended_s, 0.99) AS p99_s,
       max(s.ended_s) AS max_s
FROM stays s
GROUP BY s.state
