-- The cluster, minute by minute: how much all brokers carried, and how evenly.
--
-- minute: begin of the minute
-- brokers: brokers with a report in force
-- bundles: bundles that they held
-- cpu_percent_mean: mean of the brokers' CPU, 0 to 100
-- cpu_percent_max: CPU of the fullest broker, 0 to 100
-- fullest_broker: the broker with most CPU
-- max_over_mean: the fullest over the mean; 1 is even
-- rate_msg_s: messages per second of all brokers, in and out
-- in_rate_bytes_s: bytes per second that came in, all brokers
-- out_rate_bytes_s: bytes per second that went out, all brokers
WITH lives AS (
    SELECT m.minute,
           m.broker,
           sum(m.cpu_percent * m.covered_s) / sum(m.covered_s) AS cpu_percent,
           sum(m.bundles * m.covered_s) / 60 AS bundles,
           sum((m.in_rate_msg_s + m.out_rate_msg_s) * m.covered_s) / 60 AS rate_msg_s,
           sum(m.in_rate_bytes_s * m.covered_s) / 60 AS in_rate_bytes_s,
           sum(m.out_rate_bytes_s * m.covered_s) / 60 AS out_rate_bytes_s
    FROM broker_minute m
    WHERE m.covered_s > 0
    GROUP BY m.minute, m.broker
),
placed AS (
    SELECT l.*, row_number() OVER (PARTITION BY l.minute ORDER BY l.cpu_percent DESC, l.broker) AS place FROM lives l
)
SELECT p.minute,
       count(*) AS brokers,
       sum(p.bundles) AS bundles,
       avg(p.cpu_percent) AS cpu_percent_mean,
       max(p.cpu_percent) AS cpu_percent_max,
       max(CASE WHEN p.place = 1 THEN p.broker END) AS fullest_broker,
       max(p.cpu_percent) / nullif(avg(p.cpu_percent), 0) AS max_over_mean,
       sum(p.rate_msg_s) AS rate_msg_s,
       sum(p.in_rate_bytes_s) AS in_rate_bytes_s,
       sum(p.out_rate_bytes_s) AS out_rate_bytes_s
FROM placed p
GROUP BY p.minute
