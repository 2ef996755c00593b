-- When bundles began and stopped being served, from the channel's transitions
-- reads: transition
--
-- Each transition with its `edge`: `stop`, `start`, `outside` (the bundle was made or is gone), or null; and the last
-- record that asked the bundle to leave its holder (`begun_…`). A bundle in `assigning` is not served yet: its `return`
-- tells that the holder has acquired it. Times are the log's, order is that of the offsets: writers' clocks are not
-- used. A split or merge makes and ends bundles that are being served: it is neither a stop nor a start.
WITH asked AS (
    SELECT t.*, CASE WHEN t.action IN ('transfer', 'unload', 'revoke') THEN t.offset END AS asked_offset
    FROM transition t
    WHERE unix_micros(t.appended_at) < :end_us
)
SELECT a.*,
       CASE WHEN a.state_before IS NULL OR a.state IS NULL THEN 'outside'
            WHEN a.state_before IN ('assigned', 'transferring', 'splitting')
                 AND a.state NOT IN ('assigned', 'transferring', 'splitting') THEN 'stop'
            WHEN a.state_before NOT IN ('assigned', 'transferring', 'splitting')
                 AND a.state IN ('assigned', 'transferring', 'splitting') THEN 'start' END AS edge,
       max_by(a.action, a.asked_offset) OVER so_far AS begun_action,
       max_by(coalesce(a.role, ''), a.asked_offset) OVER so_far AS begun_role,
       max_by(coalesce(a.actor, ''), a.asked_offset) OVER so_far AS begun_actor,
       max_by(coalesce(a.cause, ''), a.asked_offset) OVER so_far AS begun_cause,
       max_by(a.appended_at, a.asked_offset) OVER so_far AS begun_at
FROM asked a
WINDOW so_far AS (
    PARTITION BY a.partition, a.bundle ORDER BY a.offset, a.ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
)
