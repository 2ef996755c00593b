-- Whether each bundle was there at the window's end
-- reads: transition
--
-- One that was split, merged or deleted is not.
SELECT l.bundle, l.there
FROM (
    SELECT t.partition, t.bundle, max_by(t.state IS NOT NULL, (t.offset, t.ordinal)) AS there
    FROM transition t
    WHERE t.appended_at < :end
    GROUP BY t.partition, t.bundle
) l
