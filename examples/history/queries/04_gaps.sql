-- How long does nobody serve a bundle when it moves, by the kind of the move?
SELECT m.how,
       m.why,
       count(*) AS moves,
       round(avg(m.gap_s), 3) AS mean_gap_s,
       max(m.gap_s) AS longest_gap_s
FROM moves_and_their_gaps m
WHERE m.served_at IS NOT NULL
GROUP BY m.how, m.why
ORDER BY m.how, m.why
