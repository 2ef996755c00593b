-- Which hours of the day (UTC) are the busiest?
SELECT hour(c.minute) AS hour_of_day,
       round(avg(c.cpu_percent_mean), 1) AS cpu_percent,
       round(avg(c.rate_msg_s)) AS rate_msg_s
FROM cluster_load_by_minute c
GROUP BY hour(c.minute)
ORDER BY cpu_percent DESC, hour_of_day
LIMIT 5
