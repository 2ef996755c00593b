-- When each report of load was in force, from `begin_us` to before `end_us` (microseconds since 1970).
--
-- A report ends with the first of these: the next report of its broker, the deletion of the broker's load data, the
-- death of its incarnation, its time to live, and the horizon, after which nothing is known yet. An incarnation dies
-- with each `revoke` of a bundle that it served: a bundle that is stuck in `assigning` or `releasing` is revoked from
-- living brokers, too. What a dead incarnation reports within a time to live doesn't count, nor does the first report
-- after a deletion by the same incarnation: a broker that stops may send one that it had measured before.
--
-- Reads `report` (partition, offset, appended_at, broker, incarnation, at), where rows without `at` are deletions, and
-- `transition`. Rows of two times to live before the time of interest decide about it, and none before those.
WITH told AS (
    SELECT r.partition, r.offset, r.broker, r.incarnation, r.at IS NULL AS deletes,
           unix_micros(coalesce(r.at, r.appended_at)) AS begin_us, CAST(NULL AS bigint) AS revoke_us
    FROM report r
    UNION ALL
    SELECT CAST(NULL AS int), CAST(NULL AS bigint), t.holder_before, t.holder_before_incarnation, CAST(NULL AS boolean),
           unix_micros(t.appended_at), unix_micros(t.appended_at)
    FROM transition t
    WHERE t.action = 'revoke' AND t.state_before IN ('assigned', 'transferring', 'splitting')
      AND t.holder_before_incarnation IS NOT NULL
),
mortal AS (
    SELECT t.*,
           max(t.revoke_us) OVER (PARTITION BY t.broker, t.incarnation ORDER BY t.begin_us) AS died_us,
           min(t.revoke_us) OVER (PARTITION BY t.broker, t.incarnation ORDER BY t.begin_us DESC) AS dies_us
    FROM told t
),
reported AS (
    SELECT m.*,
           lag(m.deletes) OVER o AND lag(m.incarnation, 2) OVER o >= m.incarnation
               AND m.begin_us - lag(m.begin_us, 2) OVER o < :ttl_us AS is_late
    FROM mortal m
    WHERE m.revoke_us IS NULL
    WINDOW o AS (PARTITION BY m.broker ORDER BY m.begin_us, m.partition, m.offset)
),
followed AS (
    SELECT r.*, lead(r.begin_us) OVER (PARTITION BY r.broker ORDER BY r.begin_us, r.partition, r.offset) AS next_us
    FROM reported r
    WHERE NOT coalesce(r.is_late OR r.begin_us < r.died_us + :ttl_us, false)
)
SELECT f.partition, f.offset, f.broker, f.incarnation, f.begin_us,
       least(f.next_us, f.dies_us, f.begin_us + :ttl_us, :horizon_us) AS end_us
FROM followed f
WHERE NOT f.deletes
