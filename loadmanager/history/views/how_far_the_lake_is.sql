-- How far each stage of the ingest has come, by topic and partition.
--
-- stage: silver, or a gold table's name
-- topic: topic that was read; empty for gold
-- partition: partition of the topic
-- next_position: offset from which the ingest goes on
-- records: records that were ingested, in the days that the lake remembers
-- until: time of the latest record that was ingested; of gold the time up to which minutes were made
SELECT p.stage,
       p.topic,
       p.partition,
       max(p.next_offset) AS next_position,
       CAST(sum(p.rows) AS BIGINT) AS records,
       max(p.until) AS until
FROM progress p
WHERE p.stage <> 'log'
GROUP BY p.stage, p.topic, p.partition
