-- Who owns how many bundles now, and since when at the longest?
SELECT w.owner,
       count(*) AS bundles,
       min(w.since) AS longest_since
FROM who_owns_what_now w
GROUP BY w.owner
ORDER BY bundles DESC, w.owner
