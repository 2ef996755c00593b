-- How far consumer groups were behind, minute by minute: each queue's last report of the minute.
--
-- minute: begin of the minute
-- group_name: name of the consumer group
-- topic: topic of the queues
-- queues: queues with a report in the minute
-- lag: records that the group had still to read, over these queues
-- lag_max: the same, of the queue that was furthest behind
-- consumers: consumers that had a queue
WITH placed AS (
    SELECT g.group AS group_name,
           g.topic,
           g.queue,
           g.lag,
           g.consumer,
           date_trunc('minute', g.at) AS minute,
           row_number() OVER (
               PARTITION BY g.group, g.topic, g.queue, date_trunc('minute', g.at) ORDER BY g.at DESC, g.offset DESC
           ) AS place
    FROM group_lag g
)
SELECT p.minute,
       p.group_name,
       p.topic,
       count(*) AS queues,
       CAST(sum(p.lag) AS BIGINT) AS lag,
       max(p.lag) AS lag_max,
       count(DISTINCT p.consumer) AS consumers
FROM placed p
WHERE p.place = 1
GROUP BY p.minute, p.group_name, p.topic
