-- The rows of `broker_minute`, from `in_force` and `broker_load`. A mean weighs each report by its part of the minute.
WITH steps AS (
    SELECT r.*, s.begin_us, s.end_us,
           explode(sequence(s.begin_us - s.begin_us % 60000000,
                            greatest(s.begin_us, s.end_us - 1), 60000000)) AS minute_us
    FROM broker_load r
    JOIN in_force s ON s.partition = r.partition AND s.offset = r.offset
    WHERE s.end_us >= s.begin_us
),
weighed AS (
    SELECT s.*, least(s.end_us, s.minute_us + 60000000) - greatest(s.begin_us, s.minute_us) AS weight
    FROM steps s
    WHERE :spans
),
means AS (
    SELECT w.minute_us, w.broker, w.incarnation,
           sum(w.weight) / 1e6 AS covered_s,
           count(CASE WHEN w.minute_us <= w.begin_us THEN 1 END) AS reports,
           max(CASE WHEN w.weight > 0 THEN w.cpu_percent END) AS cpu_percent_max,
           max_by(w.capacity, (w.begin_us, w.offset)) AS capacity,
           :means
    FROM weighed w
    GROUP BY w.minute_us, w.broker, w.incarnation
)
SELECT timestamp_micros(m.minute_us) AS minute, m.*,
       date_from_unix_date(CAST(floor(m.minute_us / 86400e6) AS int)) AS day
FROM means m
WHERE m.covered_s > 0
