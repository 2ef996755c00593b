-- Ownership timeline
-- reads: transition, progress
-- order: bundle, since, until, open
--
-- One row per time that a bundle was in one state at one holder, cut to the window. `state`, `holder`, `incarnation`,
-- `target`, from `since` to `until` (the log's times), `seconds`; `open` where nothing followed. An open row ends with
-- the window, or without a window's end at the time up to which the lake is known; its length is 0 where that lies
-- before the window.
WITH stays AS (
    SELECT t.*, unix_micros(t.appended_at) AS at_us, lead(unix_micros(t.appended_at)) OVER o AS next_us
    FROM transition t
    WHERE unix_micros(t.appended_at) < :end_us
    WINDOW o AS (PARTITION BY t.partition, t.bundle ORDER BY t.offset, t.ordinal)
),
ends AS (
    SELECT CASE WHEN :end_us < :endless_us THEN :end_us ELSE greatest(l.last_us, k.known_us) END AS end_us
    FROM (SELECT max(unix_micros(t.appended_at)) AS last_us FROM transition t) l
    CROSS JOIN (SELECT max(unix_micros(p.until)) AS known_us FROM progress p WHERE p.stage = 'silver') k
),
cut AS (
    SELECT s.*, greatest(s.at_us, :begin_us) AS since_us,
           greatest(s.at_us, :begin_us, coalesce(s.next_us, e.end_us)) AS until_us
    FROM stays s CROSS JOIN ends e
    WHERE s.state IS NOT NULL AND coalesce(s.next_us > :begin_us, true)
)
SELECT c.bundle, c.namespace, c.state, c.holder, c.holder_incarnation AS incarnation, c.target,
       timestamp_micros(c.since_us) AS since, timestamp_micros(c.until_us) AS until,
       (c.until_us - c.since_us) / 1e6 AS seconds, c.next_us IS NULL AS open
FROM cut c
