-- Each time a bundle left its owner: how, why, where to, and how long no broker served it. Times are the log's.
--
-- bundle: its name
-- namespace: the bundle's namespace
-- how: transfer, unload, or failover
-- why: stage of the decision (balance, drain, …), else failover, admin, handed over, or leader
-- decision: id of the decision, null without one
-- asked_by: broker or principal that wrote the record that began it
-- source: broker that it left
-- destination: broker that served it next, null while it lasts or if the bundle was deleted
-- asked_at: when the record that began it was in the log
-- stopped_at: when the source ceased to serve
-- served_at: when the destination served
-- gap_s: seconds from stopped_at to served_at
-- duration_s: seconds from asked_at to served_at
-- gain: what the strategy promised, null without a promise
WITH edges AS (
    SELECT t.*,
           CASE WHEN t.state_before IS NULL OR t.state IS NULL THEN 'outside'
                WHEN t.state_before IN ('assigned', 'transferring', 'splitting')
                     AND t.state NOT IN ('assigned', 'transferring', 'splitting') THEN 'stop'
                WHEN t.state_before NOT IN ('assigned', 'transferring', 'splitting')
                     AND t.state IN ('assigned', 'transferring', 'splitting') THEN 'start'
           END AS edge,
           max(CASE WHEN t.action IN ('transfer', 'unload', 'revoke') THEN t.offset END) OVER (
               PARTITION BY t.partition, t.bundle ORDER BY t.offset, t.ordinal
               ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
           ) AS asked_offset
    FROM transition t
),
followed AS (
    SELECT e.*,
           lead(e.edge) OVER (PARTITION BY e.partition, e.bundle ORDER BY e.offset, e.ordinal) AS next_edge,
           lead(e.appended_at) OVER (PARTITION BY e.partition, e.bundle ORDER BY e.offset, e.ordinal) AS next_at,
           lead(e.holder) OVER (PARTITION BY e.partition, e.bundle ORDER BY e.offset, e.ordinal) AS next_holder
    FROM edges e
    WHERE e.edge IS NOT NULL
),
promised AS (
    SELECT m.decision,
           m.bundle,
           m.stage,
           m.gain,
           row_number() OVER (
               PARTITION BY m.decision, m.bundle
               ORDER BY CASE WHEN m.outcome = 'begun' THEN 0 ELSE 1 END, m.ordinal, m.offset
           ) AS place
    FROM move m
)
SELECT s.bundle,
       s.namespace,
       CASE WHEN a.action = 'revoke' THEN 'failover' ELSE a.action END AS how,
       CASE WHEN a.action = 'revoke' THEN 'failover'
            WHEN p.stage IS NOT NULL THEN p.stage
            WHEN a.role = 'admin' THEN 'admin'
            WHEN a.role = 'broker' THEN 'handed over'
            ELSE 'leader'
       END AS why,
       nullif(a.cause, '') AS decision,
       a.actor AS asked_by,
       s.holder_before AS source,
       CASE WHEN s.next_edge = 'start' THEN s.next_holder END AS destination,
       a.appended_at AS asked_at,
       s.appended_at AS stopped_at,
       CASE WHEN s.next_edge = 'start' THEN s.next_at END AS served_at,
       CASE WHEN s.next_edge = 'start'
            THEN greatest(0, unix_micros(s.next_at) - unix_micros(s.appended_at)) / 1e6 END AS gap_s,
       CASE WHEN s.next_edge = 'start'
            THEN greatest(0, unix_micros(s.next_at) - unix_micros(a.appended_at)) / 1e6 END AS duration_s,
       p.gain
FROM followed s
LEFT JOIN transition a ON a.partition = s.partition AND a.bundle = s.bundle AND a.offset = s.asked_offset
LEFT JOIN promised p ON p.decision = a.cause AND p.bundle = s.bundle AND p.place = 1
WHERE s.edge = 'stop'
