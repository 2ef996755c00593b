-- Changes of the leader
-- reads: channel
-- order: epoch
--
-- One row per epoch that began in the window: the `leader` with its `incarnation`, `since` (its first accepted `lead`
-- record), how many `partitions` it took and `took_s` from the first to the last; `until` the next epoch began (null:
-- it still leads) and `seconds`. An epoch is one broker's.
WITH epochs AS (
    SELECT c.epoch, min(c.appended_at) AS since, max(c.appended_at) AS last,
           min_by(c.actor, c.appended_at) AS leader, min_by(c.actor_incarnation, c.appended_at) AS incarnation,
           count(DISTINCT c.partition) AS partitions
    FROM channel c
    WHERE c.action = 'lead' AND c.verdict = 'accepted' AND unix_micros(c.appended_at) < :end_us
    GROUP BY c.epoch
),
terms AS (
    SELECT e.epoch, e.leader, e.incarnation, e.since, e.partitions,
           greatest(0, unix_micros(e.last) - unix_micros(e.since)) / 1e6 AS took_s,
           lead(e.since) OVER (ORDER BY e.epoch) AS until
    FROM epochs e
)
SELECT t.*,
       CASE WHEN t.until IS NOT NULL THEN greatest(0, unix_micros(t.until) - unix_micros(t.since)) / 1e6 END AS seconds
FROM terms t
WHERE unix_micros(t.since) >= :begin_us
