-- How uneven the brokers were, minute by minute, in each resource and in the fullest one
-- reads: broker_minute
--
-- The rows of `imbalance`, and of the minutes around the window that `benefit` measures. `fullest` stands for a
-- broker's usage: the largest of its resources.
WITH each AS (
    SELECT b.minute, b.broker, b.incarnation, b.covered_s, r.resource, r.weight,
           CASE r.resource WHEN 'cpu' THEN :cores
                           WHEN 'memory' THEN :memory_percent / 100 * :memory_bytes_room
                           WHEN 'bandwidth in' THEN :in_rate_bytes_s
                           WHEN 'bandwidth out' THEN :out_rate_bytes_s
                           ELSE :in_rate_msg_s + :out_rate_msg_s END AS used,
           CASE r.resource WHEN 'cpu' THEN :cpu_room
                           WHEN 'memory' THEN :memory_bytes_room
                           WHEN 'bandwidth in' THEN :in_rate_bytes_s_room
                           WHEN 'bandwidth out' THEN :out_rate_bytes_s_room
                           ELSE :rate_msg_s_room END AS room
    FROM broker_minute b
    CROSS JOIN (VALUES ('cpu', :cpu_weight), ('memory', :memory_weight), ('bandwidth in', :bandwidth_weight),
                       ('bandwidth out', :bandwidth_weight), ('message rate', :message_rate_weight))
        AS r(resource, weight)
    WHERE b.covered_s > 0 AND r.weight > 0 AND b.minute >= :around_begin AND b.minute < :around_end
),
usages AS (
    SELECT e.*, e.weight * e.used / e.room AS usage FROM each e
),
kinds AS (
    SELECT u.minute, u.resource, u.broker, u.covered_s, u.usage, u.weight * u.used AS used, u.room
    FROM usages u
    WHERE u.room IS NOT NULL
    UNION ALL
    SELECT u.minute, 'fullest', u.broker, max(u.covered_s), greatest(0e0, max(u.usage)), NULL, NULL
    FROM usages u
    GROUP BY u.minute, u.broker, u.incarnation
),
summed AS (
    SELECT k.minute, k.resource, sum(k.covered_s) AS time,
           sum(k.covered_s * k.usage) / sum(k.covered_s) AS mean,
           sum(k.covered_s * k.usage * k.usage) / sum(k.covered_s) AS square,
           max(k.usage) AS max,
           max_by(k.broker, (k.usage, k.covered_s, k.broker)) AS broker,
           max_by(k.covered_s, (k.usage, k.covered_s, k.broker)) AS covered_s,
           sum(k.covered_s * k.used) / sum(k.covered_s * k.room) AS even
    FROM kinds k
    GROUP BY k.minute, k.resource
),
leveled AS (
    SELECT s.minute, s.resource, s.time, s.mean, s.square, s.max, s.broker, s.covered_s,
           CASE WHEN s.resource = 'fullest' THEN greatest(0e0, max(s.even) OVER (PARTITION BY s.minute))
                ELSE s.even END AS even
    FROM summed s
)
SELECT l.minute, l.resource, l.time / 60 AS brokers, l.mean,
       sqrt(greatest(0e0, l.square - l.mean * l.mean)) AS std,
       l.max, coalesce(l.max / nullif(l.mean, 0), 1) AS max_over_mean, l.broker, l.even,
       greatest(:idle, (1 + :tolerance) * l.even) AS allowed,
       CASE WHEN l.max > greatest(:idle, (1 + :tolerance) * l.even) THEN l.covered_s ELSE 0 END AS above_s
FROM leveled l
