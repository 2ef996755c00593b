-- Each stay of a bundle at an owner, from the first record that names the owner to the first that names another one.
--
-- bundle: its name
-- namespace: the bundle's namespace
-- owner: broker that held it
-- owner_incarnation: the process of that broker
-- since: when the log took the record that made it the owner
-- until: when the log took the record that ended it, null while it lasts
-- stay_s: seconds from since to until
WITH changes AS (
    SELECT t.*,
           lag(t.holder) OVER o AS was,
           lag(t.holder_incarnation) OVER o AS was_number
    FROM transition t
    WINDOW o AS (PARTITION BY t.partition, t.bundle ORDER BY t.offset, t.ordinal)
),
stays AS (
    SELECT c.*,
           lead(c.appended_at) OVER (PARTITION BY c.partition, c.bundle ORDER BY c.offset, c.ordinal) AS until
    FROM changes c
    WHERE c.holder IS DISTINCT FROM c.was OR c.holder_incarnation IS DISTINCT FROM c.was_number
)
SELECT s.bundle,
       s.namespace,
       s.holder AS owner,
       s.holder_incarnation AS owner_incarnation,
       s.appended_at AS since,
       s.until,
       greatest(0, unix_micros(s.until) - unix_micros(s.appended_at)) / 1e6 AS stay_s
FROM stays s
WHERE s.holder IS NOT NULL
