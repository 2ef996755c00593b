-- `hourly` of the bundles that are there at the window's end
-- reads: hourly, last_known
--
-- Bundles without any record in the channel stay.
SELECT /*+ BROADCAST(g) */ h.*
FROM hourly h
LEFT JOIN (SELECT k.bundle FROM last_known k WHERE NOT k.there) g ON g.bundle = h.bundle
WHERE g.bundle IS NULL
