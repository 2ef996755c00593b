-- The sums of the normal equations of `capacity`, one row per kind of broker
-- reads: broker_minute
--
-- Minutes without a known CPU are left out. A minute's weight is the part of it that is covered.
WITH terms AS (
    SELECT b.broker, round(:cpu_room, 2) AS cores,
           CAST(round(coalesce(:memory_bytes_room / 1073741824, 0)) AS bigint) AS memory_gib,
           b.covered_s / 60 AS w,
           :cores AS y,
           1e0 AS x0,
           :in_rate_msg_s / 1000 AS x1,
           :out_rate_msg_s / 1000 AS x2,
           :in_rate_bytes_s / 1048576 AS x3,
           :out_rate_bytes_s / 1048576 AS x4,
           :bundles AS x5
    FROM broker_minute b
    WHERE b.covered_s > 0 AND b.minute >= :begin AND b.minute < :end
      AND b.cpu_percent >= 0 AND b.cpu_percent < CAST('infinity' AS double)
)
SELECT t.cores, t.memory_gib,
       :products,
       sum(t.w * t.y * t.y) AS squares, sum(t.w * t.y) AS total, sum(t.w) AS weight,
       count(*) AS minutes, count(DISTINCT t.broker) AS brokers
FROM terms t
GROUP BY t.cores, t.memory_gib
