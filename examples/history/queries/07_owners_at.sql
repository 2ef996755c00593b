-- Who owned which bundle at a moment of the past?
SELECT w.bundle,
       w.owner,
       w.since,
       w.until
FROM who_owned_what_when w
WHERE w.since <= TIMESTAMP '2026-01-08 12:35:00+00:00'
  AND (w.until > TIMESTAMP '2026-01-08 12:35:00+00:00' OR w.until IS NULL)
ORDER BY w.bundle
