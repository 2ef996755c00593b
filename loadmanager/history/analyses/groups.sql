-- Consumer groups
-- reads: group_lag
-- order: group, topic
--
-- One row per group and topic. A report is in force until the queue's next one, for five minutes at most, and not
-- beyond the newest report of group and topic. `queues`; the lag of a queue, weighted by how long it was in force
-- (`lag_mean`), its largest (`lag_max`) and the 99th percentile of reports (`lag_p99`); `lag_last`, the sum over the
-- reports in force at the end; `rebalances`, how far the generation rose, and `rebalances_h`, the same per hour: a
-- generation below the one before it counts from 0, as the group began again; `stickiness`: of the queues that had a
-- consumer before and after a rebalance, the part that kept it (null where there was none). Of two reports at the same
-- instant the later record counts.
WITH reports AS (
    SELECT l.*, unix_micros(l.at) AS begin_us,
           lead(unix_micros(l.at)) OVER (
               PARTITION BY l.group, l.topic, l.queue ORDER BY l.at, l.partition, l.offset
           ) AS next_us,
           max(unix_micros(l.at)) OVER (PARTITION BY l.group, l.topic) AS last_us
    FROM group_lag l
    WHERE l.at >= :begin AND l.at < :end
),
weighed AS (
    SELECT r.*, (least(r.next_us, r.begin_us + :lag_ttl_us, r.last_us) - r.begin_us) / 1e6 AS in_force_s,
           r.next_us IS NULL AND r.begin_us + :lag_ttl_us > r.last_us AS is_last
    FROM reports r
),
sums AS (
    SELECT w.group, w.topic, count(DISTINCT w.queue) AS queues,
           coalesce(sum(w.lag * w.in_force_s) / nullif(sum(CASE WHEN w.lag IS NOT NULL THEN w.in_force_s END), 0),
                    avg(w.lag)) AS lag_mean,
           max(w.lag) AS lag_max,
           percentile(w.lag, 0.99) AS lag_p99,
           CAST(sum(CASE WHEN w.is_last THEN w.lag END) AS bigint) AS lag_last,
           (max(w.begin_us) - min(w.begin_us)) / 3600e6 AS hours
    FROM weighed w
    GROUP BY w.group, w.topic
),
counted AS (
    SELECT r.*, lag(r.generation) OVER (
               PARTITION BY r.group, r.topic ORDER BY r.begin_us, r.partition, r.offset
           ) AS generation_before
    FROM reports r
    WHERE r.generation IS NOT NULL
),
lives AS (
    SELECT c.*,
           c.generation - CASE WHEN c.generation >= c.generation_before THEN c.generation_before ELSE 0 END AS rise,
           count(CASE WHEN c.generation < c.generation_before THEN 1 END) OVER (
               PARTITION BY c.group, c.topic ORDER BY c.begin_us, c.partition, c.offset
           ) AS life
    FROM counted c
),
risen AS (
    SELECT l.group, l.topic,
           CAST(sum(CASE WHEN l.generation_before IS NOT NULL THEN l.rise END) AS bigint) AS rebalances
    FROM lives l
    GROUP BY l.group, l.topic
),
held AS (
    SELECT l.group, l.topic, l.queue, l.life, l.generation,
           max_by(l.consumer, (l.begin_us, l.partition, l.offset)) AS consumer
    FROM lives l
    WHERE l.consumer IS NOT NULL
    GROUP BY l.group, l.topic, l.queue, l.life, l.generation
),
followed AS (
    SELECT h.*,
           lag(h.consumer) OVER (
               PARTITION BY h.group, h.topic, h.queue ORDER BY h.life, h.generation
           ) AS consumer_before
    FROM held h
),
kept AS (
    SELECT f.group, f.topic, count_if(f.consumer = f.consumer_before) / CAST(count(*) AS double) AS stickiness
    FROM followed f
    WHERE f.consumer_before IS NOT NULL
    GROUP BY f.group, f.topic
)
SELECT s.group, s.topic, s.queues, s.lag_mean, s.lag_max, s.lag_p99, s.lag_last,
       coalesce(r.rebalances, 0) AS rebalances, coalesce(r.rebalances, 0) / nullif(s.hours, 0) AS rebalances_h,
       k.stickiness
FROM sums s
LEFT JOIN risen r ON r.group = s.group AND r.topic = s.topic
LEFT JOIN kept k ON k.group = s.group AND k.topic = s.topic
