-- Failovers
-- reads: edges
-- order: revoked_at, broker, incarnation
--
-- One row per incarnation of a broker whose bundles were revoked, because it was dead or stuck, if the first revocation
-- is in the window: `revoked_at`; the `leader` that did it; `bundles`; how many of them have an owner again (`served`)
-- and when the last of these got it (`restored_at`); percentiles from revocation to service; `back_at`: when a later
-- incarnation of that name first got a bundle. A bundle that is deleted meanwhile is not served again.
WITH marked AS (
    SELECT e.*, CASE WHEN e.edge IN ('start', 'outside') THEN e.offset END AS end_offset FROM edges e
),
ended AS (
    SELECT m.*, min_by(m.edge, m.end_offset) OVER o AS next_edge, min_by(m.appended_at, m.end_offset) OVER o AS next_at
    FROM marked m
    WINDOW o AS (
        PARTITION BY m.partition, m.bundle ORDER BY m.offset, m.ordinal
        ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
    )
),
revoked AS (
    SELECT e.holder_before AS broker, e.holder_before_incarnation AS incarnation, e.bundle, e.appended_at, e.actor,
           CASE WHEN e.next_edge = 'start' THEN e.next_at END AS served_at,
           CASE WHEN e.next_edge = 'start'
                THEN greatest(0, unix_micros(e.next_at) - unix_micros(e.appended_at)) / 1e6 END AS took_s
    FROM ended e
    WHERE e.action = 'revoke'
),
deaths AS (
    SELECT r.broker, r.incarnation, min(r.appended_at) AS revoked_at, min_by(r.actor, r.appended_at) AS leader,
           count(DISTINCT r.bundle) AS bundles,
           count(DISTINCT CASE WHEN r.served_at IS NOT NULL THEN r.bundle END) AS served,
           max(r.served_at) AS restored_at,
           percentile(r.took_s, 0.5) AS p50_s, percentile(r.took_s, 0.9) AS p90_s, percentile(r.took_s, 0.99) AS p99_s,
           max(r.took_s) AS max_s
    FROM revoked r
    GROUP BY r.broker, r.incarnation
),
starts AS (
    SELECT e.holder, e.holder_incarnation, min(e.appended_at) AS since
    FROM edges e
    WHERE e.holder IS NOT NULL
    GROUP BY e.holder, e.holder_incarnation
),
backs AS (
    SELECT d.broker, d.incarnation, min(s.since) AS back_at
    FROM deaths d
    JOIN starts s ON s.holder = d.broker AND s.holder_incarnation > d.incarnation
    GROUP BY d.broker, d.incarnation
)
SELECT d.*, b.back_at
FROM deaths d
LEFT JOIN backs b ON b.broker = d.broker AND b.incarnation = d.incarnation
WHERE unix_micros(d.revoked_at) >= :begin_us
