-- Predicted and measured benefit
-- reads: decision, move, usage_minutes
-- order: at, id
--
-- One row per decision of the window that began a move. `predicted_before` and `predicted_after` are the decision's
-- spreads (max/mean - 1 of the fullest resource); `measured_…` the mean spreads in the `settle_s` before its minute and
-- after the minute that follows it, in which moves and reports settle; null where those minutes are unknown.
-- `predicted` and `measured` are by how much the spread fell, `kept` is measured / predicted, `gain` the sum of the
-- moves' promised gains. The measured effect includes everything that happened in those minutes, also load that changed
-- by itself.
WITH copies AS (
    SELECT d.*, CAST(floor(unix_micros(d.at) / 60e6) AS bigint) AS number,
           row_number() OVER (PARTITION BY d.id ORDER BY d.partition, d.offset) AS place
    FROM decision d
    WHERE d.begun > 0 AND d.at >= :begin AND d.at < :end
),
decided AS (
    SELECT c.* FROM copies c WHERE c.place = 1
),
around AS (
    SELECT d.id, d.number, explode(sequence(d.number - :settle_m, d.number + 1 + :settle_m, 1)) AS minute FROM decided d
),
spreads AS (
    SELECT CAST(floor(unix_micros(u.minute) / 60e6) AS bigint) AS minute, u.max_over_mean - 1 AS spread
    FROM usage_minutes u
    WHERE u.resource = 'fullest'
),
measured AS (
    SELECT a.id,
           avg(CASE WHEN a.minute < a.number THEN s.spread END) AS before,
           avg(CASE WHEN a.minute > a.number + 1 THEN s.spread END) AS after
    FROM around a
    JOIN spreads s ON s.minute = a.minute
    GROUP BY a.id
),
promised AS (
    SELECT m.decision, m.gain,
           row_number() OVER (PARTITION BY m.decision, m.bundle ORDER BY m.partition, m.offset, m.ordinal) AS place
    FROM move m
    WHERE m.outcome = 'begun'
),
gains AS (
    SELECT p.decision, sum(p.gain) AS gain FROM promised p WHERE p.place = 1 GROUP BY p.decision
)
SELECT d.id, d.at, d.strategy, d.moves, d.begun,
       d.spread_before AS predicted_before, d.spread_after AS predicted_after,
       m.before AS measured_before, m.after AS measured_after,
       d.spread_before - d.spread_after AS predicted, m.before - m.after AS measured,
       CASE WHEN d.spread_before - d.spread_after > 1e-9
            THEN (m.before - m.after) / (d.spread_before - d.spread_after) END AS kept,
       g.gain
FROM decided d
LEFT JOIN measured m ON m.id = d.id
LEFT JOIN gains g ON g.decision = d.id
