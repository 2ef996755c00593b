-- The changes that name a bundle's holder (null: the bundle is gone), each until the bundle's next one.
--
-- Reads `transition`.
SELECT t.bundle, t.holder_before, t.holder, unix_micros(t.appended_at) AS since_us,
       lead(unix_micros(t.appended_at)) OVER o AS until_us,
       row_number() OVER o AS place
FROM transition t
WHERE t.state IS NULL OR t.holder IS DISTINCT FROM t.holder_before AND t.holder IS NOT NULL
WINDOW o AS (PARTITION BY t.bundle ORDER BY t.partition, t.offset, t.ordinal)
