-- Outages of bundles
-- reads: stops
-- order: began_at, bundle
--
-- One row per time without a serving owner that touches the window: `how` it began, who served before (`source`) and
-- after (`destination`), `began_at`, `ended_at` (null while it lasts; the time of deletion where the bundle was
-- deleted), `seconds` (null while it lasts).
SELECT s.bundle, s.namespace, s.how, s.decision, s.actor,
       s.source, s.source_incarnation, s.destination, s.destination_incarnation,
       s.stopped_at AS began_at,
       coalesce(s.served_at, s.deleted_at) AS ended_at,
       CASE WHEN coalesce(s.served_at, s.deleted_at) IS NOT NULL THEN
           greatest(0, unix_micros(coalesce(s.served_at, s.deleted_at)) - unix_micros(s.stopped_at)) / 1e6
       END AS seconds
FROM stops s
WHERE coalesce(unix_micros(coalesce(s.served_at, s.deleted_at)) > :begin_us, true)
