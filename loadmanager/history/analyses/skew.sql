-- Skew of the bundles
-- reads: bundle_hours
-- order: day, resource
--
-- One row per day (UTC) and resource that was used at all. `bundles` that were reported; `gini` of their loads, 0 (all
-- alike) to 1 - 1/n; `top_1`, `top_10` and `top_1_percent` (rounded up to whole bundles): the part of the load that the
-- hottest have.
WITH days AS (
    SELECT CAST(floor(h.hour / 24e0) AS bigint) AS number, h.bundle,
           sum(h.cpu) AS cpu, sum(h.bytes_in) AS bytes_in, sum(h.bytes_out) AS bytes_out, sum(h.messages) AS messages
    FROM bundle_hours h
    GROUP BY CAST(floor(h.hour / 24e0) AS bigint), h.bundle
),
loads AS (
    SELECT d.number, d.bundle, r.resource,
           CASE r.resource WHEN 'cpu' THEN d.cpu
                           WHEN 'bandwidth in' THEN d.bytes_in
                           WHEN 'bandwidth out' THEN d.bytes_out
                           ELSE d.messages END AS load
    FROM days d
    CROSS JOIN (VALUES ('cpu'), ('bandwidth in'), ('bandwidth out'), ('message rate')) AS r(resource)
),
placed AS (
    SELECT l.*,
           row_number() OVER (PARTITION BY l.number, l.resource ORDER BY l.load, l.bundle) AS place,
           count(*) OVER (PARTITION BY l.number, l.resource) AS n
    FROM loads l
)
SELECT timestamp_seconds(p.number * 86400) AS day, p.resource, p.n AS bundles,
       greatest(0e0, 2 * sum(p.place * p.load) / (p.n * sum(p.load)) - (p.n + 1) / CAST(p.n AS double)) AS gini,
       sum(CASE WHEN p.place > p.n - 1 THEN p.load ELSE 0e0 END) / sum(p.load) AS top_1,
       sum(CASE WHEN p.place > p.n - 10 THEN p.load ELSE 0e0 END) / sum(p.load) AS top_10,
       sum(CASE WHEN p.place > p.n - ceil(p.n / 100e0) THEN p.load ELSE 0e0 END) / sum(p.load) AS top_1_percent
FROM placed p
GROUP BY p.number, p.resource, p.n
HAVING sum(p.load) > 0
