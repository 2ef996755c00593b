-- Which bundles were among the three hottest, and on how many days?
SELECT h.bundle,
       count(*) AS days,
       min(h.place_by_cpu) AS best_place,
       round(avg(h.cpu_percent), 1) AS cpu_percent,
       round(100 * avg(h.part_of_messages), 1) AS percent_of_messages
FROM hottest_bundles_by_day h
WHERE h.place_by_cpu <= 3
GROUP BY h.bundle
ORDER BY days DESC, h.bundle
