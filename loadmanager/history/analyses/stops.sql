-- Times in which a bundle was not served: from a stop to the next start
-- reads: edges
--
-- `served_at` and `destination` are null while it lasts, or where the bundle was deleted (`deleted_at`).
WITH followed AS (
    SELECT e.*,
           lead(e.edge) OVER o AS next_edge,
           lead(e.appended_at) OVER o AS next_at,
           lead(e.holder) OVER o AS next_holder,
           lead(e.holder_incarnation) OVER o AS next_incarnation
    FROM edges e
    WHERE e.edge IS NOT NULL
    WINDOW o AS (PARTITION BY e.partition, e.bundle ORDER BY e.offset, e.ordinal)
)
SELECT f.bundle, f.namespace,
       CASE f.begun_action WHEN 'revoke' THEN 'failover' ELSE f.begun_action END AS how,
       nullif(f.begun_cause, '') AS decision,
       nullif(f.begun_role, '') AS role,
       nullif(f.begun_actor, '') AS actor,
       f.holder_before AS source,
       f.holder_before_incarnation AS source_incarnation,
       CASE WHEN f.next_edge = 'start' THEN f.next_holder END AS destination,
       CASE WHEN f.next_edge = 'start' THEN f.next_incarnation END AS destination_incarnation,
       f.begun_at AS began_at,
       f.appended_at AS stopped_at,
       CASE WHEN f.next_edge = 'start' THEN f.next_at END AS served_at,
       CASE WHEN f.next_edge = 'outside' THEN f.next_at END AS deleted_at
FROM followed f
WHERE f.edge = 'stop'
