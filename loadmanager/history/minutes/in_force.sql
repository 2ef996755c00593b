-- When each report of load was in force, from `begin_us` to before `end_us` (microseconds since 1970).
--
-- A report ends with the first of these: the next report of its broker, the deletion of the broker's load data, the
-- death of its incarnation, its time to live, and the horizon, after which nothing is known yet. An incarnation is dead
-- from the first `revoke` of a bundle that it served: a bundle that is stuck in `assigning` or `releasing` is revoked
-- from living brokers, too. What a dead incarnation reports within its time to live doesn't count, nor does the first
-- report after a deletion by the same incarnation: a broker that stops may send one that it had measured before.
--
-- Reads `report` (partition, offset, appended_at, broker, incarnation, at), where rows without `at` are deletions, and
-- `transition`. Rows of two times to live before the time of interest decide about it, and none before those.
WITH deaths AS (
    SELECT t.holder_before AS broker,
           t.holder_before_incarnation AS incarnation,
           min(unix_micros(t.appended_at)) AS died_us
    FROM transition t
    WHERE t.action = 'revoke' AND t.state_before IN ('assigned', 'transferring', 'splitting')
    GROUP BY t.holder_before, t.holder_before_incarnation
),
reported AS (
    SELECT r.partition, r.offset, r.broker, r.incarnation, r.at IS NULL AS deletes,
           unix_micros(coalesce(r.at, r.appended_at)) AS begin_us
    FROM report r
),
living AS (
    SELECT r.*, CASE WHEN d.died_us > r.begin_us THEN d.died_us END AS died_us
    FROM reported r
    LEFT JOIN deaths d ON d.broker = r.broker AND d.incarnation = r.incarnation
    WHERE d.died_us IS NULL OR r.begin_us < d.died_us OR r.begin_us >= d.died_us + :ttl_us
),
followed AS (
    SELECT l.*,
           lead(l.begin_us) OVER o AS next_us,
           lag(l.deletes) OVER o AND lag(l.incarnation, 2) OVER o >= l.incarnation
               AND l.begin_us - lag(l.begin_us, 2) OVER o < :ttl_us AS is_late
    FROM living l
    WINDOW o AS (PARTITION BY l.broker ORDER BY l.begin_us, l.partition, l.offset)
)
SELECT f.partition, f.offset, f.broker, f.incarnation, f.begin_us,
       least(f.next_us, f.died_us, f.begin_us + :ttl_us, :horizon_us) AS end_us
FROM followed f
WHERE NOT f.deletes AND NOT coalesce(f.is_late, false)
