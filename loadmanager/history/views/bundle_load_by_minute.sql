-- What each bundle cost, minute by minute, at whichever brokers: of bundles that were among their broker's hottest.
--
-- minute: begin of the minute
-- bundle: its name
-- namespace: the bundle's namespace
-- broker: the broker that reported it for most of the minute
-- covered_s: seconds of the minute in which a report with it was in force
-- cpu_percent: mean CPU, 100 is one core
-- rate_msg_s: messages per second, in and out
-- in_rate_bytes_s: bytes per second that came in
-- out_rate_bytes_s: bytes per second that went out
-- keys: mean number of keys
-- sessions: mean number of sessions
WITH placed AS (
    SELECT m.*,
           row_number() OVER (PARTITION BY m.minute, m.bundle ORDER BY m.covered_s DESC, m.broker) AS place
    FROM bundle_minute m
)
SELECT p.minute,
       p.bundle,
       p.namespace,
       max(CASE WHEN p.place = 1 THEN p.broker END) AS broker,
       sum(p.covered_s) AS covered_s,
       sum(p.cpu_percent * p.covered_s) / nullif(sum(p.covered_s), 0) AS cpu_percent,
       sum((p.in_rate_msg_s + p.out_rate_msg_s) * p.covered_s) / nullif(sum(p.covered_s), 0) AS rate_msg_s,
       sum(p.in_rate_bytes_s * p.covered_s) / nullif(sum(p.covered_s), 0) AS in_rate_bytes_s,
       sum(p.out_rate_bytes_s * p.covered_s) / nullif(sum(p.covered_s), 0) AS out_rate_bytes_s,
       sum(p.keys * p.covered_s) / nullif(sum(p.covered_s), 0) AS keys,
       sum(p.sessions * p.covered_s) / nullif(sum(p.covered_s), 0) AS sessions
FROM placed p
GROUP BY p.minute, p.bundle, p.namespace
