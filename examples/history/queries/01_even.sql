-- On which days was the cluster uneven, and for how long?
SELECT CAST(date_trunc('day', c.minute) AS DATE) AS day,
       round(avg(c.cpu_max_over_mean), 2) AS max_over_mean,
       count(CASE WHEN c.cpu_max_over_mean > 1.5 THEN 1 END) AS uneven_minutes
FROM cluster_load_by_minute c
GROUP BY CAST(date_trunc('day', c.minute) AS DATE)
ORDER BY day
