-- What each bundle cost on each day, with its place among the hottest.
--
-- day: UTC date
-- bundle: its name
-- namespace: the bundle's namespace
-- place_by_cpu: 1 is the bundle with most CPU on that day
-- place_by_messages: 1 is the bundle with most messages on that day
-- covered_h: hours in which reports had it
-- cpu_percent: mean CPU in that time, 100 is one core
-- rate_msg_s: messages per second in that time, in and out
-- rate_bytes_s: bytes per second in that time, in and out
-- part_of_messages: its part of all messages of the day, 0 to 1
WITH bundles AS (
    SELECT m.day,
           m.bundle,
           m.namespace,
           sum(m.covered_s) AS covered_s,
           sum(m.cpu_percent * m.covered_s) AS cpu,
           sum((m.in_rate_msg_s + m.out_rate_msg_s) * m.covered_s) AS messages,
           sum((m.in_rate_bytes_s + m.out_rate_bytes_s) * m.covered_s) AS bytes
    FROM bundle_minute m
    GROUP BY m.day, m.bundle, m.namespace
),
days AS (
    SELECT m.day, sum((m.in_rate_msg_s + m.out_rate_msg_s) * m.covered_s) AS messages
    FROM broker_minute m
    GROUP BY m.day
)
SELECT b.day,
       b.bundle,
       b.namespace,
       row_number() OVER (PARTITION BY b.day ORDER BY b.cpu DESC, b.bundle) AS place_by_cpu,
       row_number() OVER (PARTITION BY b.day ORDER BY b.messages DESC, b.bundle) AS place_by_messages,
       b.covered_s / 3600 AS covered_h,
       b.cpu / nullif(b.covered_s, 0) AS cpu_percent,
       b.messages / nullif(b.covered_s, 0) AS rate_msg_s,
       b.bytes / nullif(b.covered_s, 0) AS rate_bytes_s,
       b.messages / nullif(d.messages, 0) AS part_of_messages
FROM bundles b
LEFT JOIN days d ON d.day = b.day
