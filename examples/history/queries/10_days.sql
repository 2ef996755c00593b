-- How much did each namespace cost on each day, in cores?
SELECT h.day,
       h.namespace,
       round(sum(h.cpu_percent * h.covered_h) / 24 / 100, 2) AS cores
FROM hottest_bundles_by_day h
GROUP BY h.day, h.namespace
ORDER BY h.namespace, h.day
