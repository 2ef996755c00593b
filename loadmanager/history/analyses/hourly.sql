-- Mean load of each bundle in the measured resource, by the hour
-- reads: bundle_hours, broker_minute, bundle_total
--
-- Where the service doesn't measure CPU by bundle, a bundle gets a part of the CPU that the cluster used in that hour,
-- by its part of that hour's messages, or else of the bytes. So no hour knows of later ones, and a backtest learns from
-- the hours before its origin alone. `first` and `last` are those of all bundles, on every row, so that all series line
-- up. Hours more than `:most_hours` before the last are left out.
WITH cluster AS (
    SELECT CAST(floor(unix_micros(b.minute) / 3600e6) AS bigint) AS hour,
           sum(b.covered_s * :cores) AS cpu,
           sum(b.covered_s * (:in_rate_bytes_s + :out_rate_bytes_s)) AS bytes,
           sum(b.covered_s * (:in_rate_msg_s + :out_rate_msg_s)) AS messages
    FROM broker_minute b
    WHERE b.covered_s > 0 AND b.minute >= :begin AND b.minute < :end
    GROUP BY CAST(floor(unix_micros(b.minute) / 3600e6) AS bigint)
),
measured AS (
    SELECT coalesce(bool_or(:cpu_percent > 0), true) AS cpu FROM bundle_total b WHERE b.at >= :begin AND b.at < :end
),
ends AS (
    SELECT greatest(min(h.hour), max(h.hour) - :most_hours + 1) AS first, max(h.hour) AS last FROM bundle_hours h
)
SELECT /*+ BROADCAST(m), BROADCAST(e), BROADCAST(c) */
       h.bundle, h.hour,
       CASE WHEN ':measure' <> 'cpu' THEN h.:measured
            WHEN m.cpu THEN h.cpu
            ELSE coalesce(c.cpu * coalesce(h.messages / nullif(c.messages, 0),
                                           (h.bytes_in + h.bytes_out) / nullif(c.bytes, 0)), 0)
            END / h.covered_s AS load,
       e.first, e.last
FROM bundle_hours h
CROSS JOIN measured m
CROSS JOIN ends e
LEFT JOIN cluster c ON c.hour = h.hour
WHERE h.hour >= e.first
