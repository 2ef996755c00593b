-- What did each leader decide, by which strategy, and did its moves begin?
SELECT d.leader,
       d.epoch,
       d.strategy,
       count(DISTINCT d.decision) AS rounds,
       count(d.bundle) AS moves,
       count(CASE WHEN d.outcome = 'begun' THEN 1 END) AS begun
FROM decisions_and_reasons d
GROUP BY d.leader, d.epoch, d.strategy
ORDER BY d.epoch
