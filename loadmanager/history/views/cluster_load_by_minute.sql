-- The cluster, minute by minute: how much all brokers carried, and how evenly.
--
-- minute: begin of the minute
-- brokers: brokers with a report in force
-- bundles: bundles that they held
-- cpu_percent_mean: mean of the brokers' CPU, weighted by the time that each took part, 0 to 100
-- cpu_percent_max: CPU of the fullest broker, 0 to 100
-- fullest_broker: the broker with most CPU
-- cpu_max_over_mean: the fullest over the mean; 1 is even, as in the analysis `imbalance` for CPU
-- rate_msg_s: messages per second of all brokers, in and out
-- in_rate_bytes_s: bytes per second that came in, all brokers
-- out_rate_bytes_s: bytes per second that went out, all brokers
WITH lives AS (
    SELECT m.*,
           CASE WHEN m.cpu_percent >= 0 AND m.cpu_percent < CAST('infinity' AS double) THEN m.cpu_percent
                ELSE 0 END AS cpu,
           m.covered_s / 60 AS part
    FROM broker_minute m
    WHERE m.covered_s > 0
),
placed AS (
    SELECT l.*, row_number() OVER (PARTITION BY l.minute ORDER BY l.cpu DESC, l.covered_s DESC, l.broker DESC) AS place
    FROM lives l
)
SELECT p.minute,
       count(DISTINCT p.broker) AS brokers,
       sum(p.bundles * p.part) AS bundles,
       sum(p.cpu * p.part) / sum(p.part) AS cpu_percent_mean,
       max(p.cpu) AS cpu_percent_max,
       max(CASE WHEN p.place = 1 THEN p.broker END) AS fullest_broker,
       coalesce(max(p.cpu) / nullif(sum(p.cpu * p.part) / sum(p.part), 0), 1) AS cpu_max_over_mean,
       sum((p.in_rate_msg_s + p.out_rate_msg_s) * p.part) AS rate_msg_s,
       sum(p.in_rate_bytes_s * p.part) AS in_rate_bytes_s,
       sum(p.out_rate_bytes_s * p.part) AS out_rate_bytes_s
FROM placed p
GROUP BY p.minute
