-- Each round of the leader that was recorded, with its reason; one row for each move that it decided, or one without.
--
-- at: when it was decided, by the leader's clock
-- decision: its id
-- leader: broker that led
-- epoch: the leader's epoch
-- strategy: name of the strategy
-- reason: why this round did what it did
-- spread_before: fullest broker over the mean, less 1, before the moves
-- spread_after: the same, as the strategy expected it after them
-- bundle: bundle to move, null if nothing was to be moved
-- source: broker that it was to leave
-- destination: broker that it was to go to
-- stage: part of the round that wanted it: balance, drain, …
-- move_reason: why this bundle
-- gain: what the strategy promised, null without a promise
-- outcome: begun, or why it was not
SELECT d.at,
       d.id AS decision,
       d.leader,
       d.epoch,
       d.strategy,
       d.reason,
       d.spread_before,
       d.spread_after,
       m.bundle,
       m.source,
       m.destination,
       m.stage,
       m.reason AS move_reason,
       m.gain,
       m.outcome
FROM decision d
LEFT JOIN move m ON m.decision = d.id
