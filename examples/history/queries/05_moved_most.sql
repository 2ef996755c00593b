-- Which bundles moved most, and how long was each out of service in total?
SELECT m.bundle,
       count(*) AS moves,
       round(sum(m.gap_s), 3) AS out_of_service_s
FROM moves_and_their_gaps m
GROUP BY m.bundle
ORDER BY moves DESC, m.bundle
LIMIT 10
