-- Consumer groups
-- reads: group_lag
-- order: group, topic
--
-- One row per group and topic. `queues`; the lag of a queue, weighted by how long it was in force (`lag_mean`), its
-- largest (`lag_max`) and the 99th percentile of reports (`lag_p99`); `lag_last` summed over the queues' last reports;
-- `rebalances`, changes of the generation, and `rebalances_h`, changes per hour; `stickiness`: of the queues that had a
-- consumer before and after a rebalance, the part that kept it (null where there was none). Of two reports at the same
-- instant the later record counts.
WITH reports AS (
    SELECT l.*, lead(l.at) OVER o AS next_at
    FROM group_lag l
    WHERE l.at >= :begin AND l.at < :end
    WINDOW o AS (PARTITION BY l.group, l.topic, l.queue ORDER BY l.at, l.partition, l.offset)
),
weighed AS (
    SELECT r.*, (unix_micros(r.next_at) - unix_micros(r.at)) / 1e6 AS in_force_s FROM reports r
),
sums AS (
    SELECT w.group, w.topic, count(DISTINCT w.queue) AS queues,
           coalesce(sum(w.lag * w.in_force_s) / nullif(sum(CASE WHEN w.lag IS NOT NULL THEN w.in_force_s END), 0),
                    avg(w.lag)) AS lag_mean,
           max(w.lag) AS lag_max,
           percentile(w.lag, 0.99) AS lag_p99,
           CAST(sum(CASE WHEN w.next_at IS NULL THEN w.lag END) AS bigint) AS lag_last,
           greatest(0, count(DISTINCT w.generation) - 1) AS rebalances,
           (unix_micros(max(w.at)) - unix_micros(min(w.at))) / 3600e6 AS hours
    FROM weighed w
    GROUP BY w.group, w.topic
),
held AS (
    SELECT r.group, r.topic, r.queue, r.generation, max_by(r.consumer, (r.at, r.partition, r.offset)) AS consumer
    FROM reports r
    WHERE r.consumer IS NOT NULL AND r.generation IS NOT NULL
    GROUP BY r.group, r.topic, r.queue, r.generation
),
followed AS (
    SELECT h.*, lag(h.consumer) OVER (PARTITION BY h.group, h.topic, h.queue ORDER BY h.generation) AS consumer_before
    FROM held h
),
kept AS (
    SELECT f.group, f.topic, count_if(f.consumer = f.consumer_before) / CAST(count(*) AS double) AS stickiness
    FROM followed f
    WHERE f.consumer_before IS NOT NULL
    GROUP BY f.group, f.topic
)
SELECT s.group, s.topic, s.queues, s.lag_mean, s.lag_max, s.lag_p99, s.lag_last, s.rebalances,
       s.rebalances / nullif(s.hours, 0) AS rebalances_h, k.stickiness
FROM sums s
LEFT JOIN kept k ON k.group = s.group AND k.topic = s.topic
