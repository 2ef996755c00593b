-- Each record of the channel that was refused, with the reason.
--
-- at: when it was written, by its author's clock
-- appended_at: when the log took it
-- partition: partition of the channel
-- position: its offset in the partition
-- action: what it asked for
-- actor: its author
-- role: broker, leader, or admin
-- bundles: names of the bundles that it is about, with commas between them
-- refusal: the reason, in one word
-- detail: the reason, in words
SELECT c.at,
       c.appended_at,
       c.partition,
       c.offset AS position,
       c.action,
       c.actor,
       c.role,
       array_join(c.bundles, ', ') AS bundles,
       c.refusal,
       c.detail
FROM channel c
WHERE c.verdict = 'refused'
