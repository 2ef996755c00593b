-- Transfers
-- reads: stops, move
-- order: served_at, bundle
--
-- One row per move that ended in the window. `how`: transfer, unload or failover; `why`: the stage of the decision's
-- move (balance, drain, …), else failover, admin, `handed over` (by its holder), leader; `gap_s` from the record with
-- which the old owner stops serving to the one with which the new owner serves; `duration_s` from the record that asked
-- for the move; `returned`: back at a broker that a planned move took it from less than `rest_s` ago, also before the
-- window; `gain` as the strategy promised, null without a promise: of several moves of a decision the one that was
-- begun, else the first.
WITH promised AS (
    SELECT m.decision, m.bundle, m.stage, m.gain,
           row_number() OVER (
               PARTITION BY m.decision, m.bundle
               ORDER BY CASE WHEN m.outcome = 'begun' THEN 0 ELSE 1 END, m.ordinal, m.offset
           ) AS place
    FROM move m
),
moved AS (
    SELECT s.*, s.how <> 'failover' AS planned,
           array_agg(CASE WHEN s.how <> 'failover' THEN s.source END) OVER (
               PARTITION BY s.bundle ORDER BY unix_micros(s.served_at)
               RANGE BETWEEN :rest_us PRECEDING AND CURRENT ROW
           ) AS sources
    FROM stops s
    WHERE s.served_at IS NOT NULL
)
SELECT m.bundle, m.namespace, m.how,
       CASE WHEN m.how = 'failover' THEN 'failover'
            WHEN p.stage IS NOT NULL THEN p.stage
            WHEN m.role = 'admin' THEN 'admin'
            WHEN m.role = 'broker' THEN 'handed over'
            ELSE 'leader' END AS why,
       m.decision, m.actor, m.source, m.source_incarnation, m.destination, m.destination_incarnation,
       m.began_at, m.stopped_at, m.served_at,
       greatest(0, unix_micros(m.served_at) - unix_micros(m.stopped_at)) / 1e6 AS gap_s,
       greatest(0, unix_micros(m.served_at) - unix_micros(m.began_at)) / 1e6 AS duration_s,
       coalesce(m.planned AND m.source <> m.destination AND array_contains(m.sources, m.destination), false)
           AS returned,
       p.gain
FROM moved m
LEFT JOIN promised p ON p.decision = m.decision AND p.bundle = m.bundle AND p.place = 1
WHERE unix_micros(m.served_at) >= :begin_us
