-- Each process of each broker, by its reports, and how long the broker was silent before it.
--
-- broker: its name
-- incarnation: number of the process; each start has a higher one
-- first_report_at: time of its first report, by its own clock
-- last_report_at: time of its last report
-- reports: number of reports
-- silent_s: seconds since the last report of the incarnation before, null for the first
WITH lives AS (
    SELECT l.broker,
           l.incarnation,
           min(l.at) AS first_report_at,
           max(l.at) AS last_report_at,
           count(*) AS reports
    FROM broker_load l
    WHERE l.incarnation IS NOT NULL
    GROUP BY l.broker, l.incarnation
)
SELECT l.broker,
       l.incarnation,
       l.first_report_at,
       l.last_report_at,
       l.reports,
       (unix_micros(l.first_report_at)
        - unix_micros(lag(l.last_report_at) OVER (PARTITION BY l.broker ORDER BY l.incarnation))) / 1e6 AS silent_s
FROM lives l
