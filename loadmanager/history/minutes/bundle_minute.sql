-- The rows of `bundle_minute`, from `in_force` of the reports of bundles, `bundle_load` and `transition`.
--
-- A report counts for a bundle while the channel names its broker as the holder, or has no record of the bundle. A
-- bundle without a new holder yet still counts at its last holder. A broker reports a bundle until one time to live
-- after it lost it, so changes of two times to live before a minute decide about it.
WITH named AS (
    :named
),
held AS (
    SELECT n.bundle, n.holder AS broker, n.since_us, n.until_us FROM named n WHERE n.holder IS NOT NULL
    UNION ALL
    SELECT n.bundle, n.holder_before, CAST(NULL AS bigint), n.since_us FROM named n WHERE n.place = 1
),
shares AS (
    SELECT b.*, s.broker AS reporter,
           greatest(s.begin_us, coalesce(h.since_us, s.begin_us)) AS begin_us,
           least(s.end_us, coalesce(h.until_us, s.end_us)) AS end_us
    FROM bundle_load b
    JOIN in_force s ON s.partition = b.partition AND s.offset = b.offset
    LEFT JOIN held h ON h.bundle = b.bundle
    WHERE h.broker IS NULL OR h.broker = s.broker
),
steps AS (
    SELECT s.*, explode(sequence(s.begin_us - s.begin_us % 60000000, s.end_us - 1, 60000000)) AS minute_us
    FROM shares s
    WHERE s.end_us > s.begin_us
),
weighed AS (
    SELECT s.*, least(s.end_us, s.minute_us + 60000000) - greatest(s.begin_us, s.minute_us) AS weight
    FROM steps s
    WHERE :spans
),
means AS (
    SELECT w.minute_us, w.bundle, w.namespace, w.reporter AS broker,
           sum(w.weight) / 1e6 AS covered_s,
           :means
    FROM weighed w
    GROUP BY w.minute_us, w.bundle, w.namespace, w.reporter
)
SELECT timestamp_micros(m.minute_us) AS minute, m.*,
       date_from_unix_date(CAST(floor(m.minute_us / 86400e6) AS int)) AS day
FROM means m
