-- Load and capacity of the whole cluster, in one row
-- reads: broker_minute, bundle_total
--
-- `cpu`, `bytes_in`, `bytes_out`, `messages`: all brokers' load times seconds. `…_unit`: one natural unit as a part of
-- the mean broker, null where not every broker declares a capacity, as in `Ruler.per_resource`. `even`: the usage if
-- all load were spread evenly. `measured`: whether the service measures CPU by bundle; true where no total is known.
WITH sums AS (
    SELECT sum(b.covered_s) AS time,
           sum(b.covered_s * :cores) AS cpu,
           sum(b.covered_s * :in_rate_bytes_s) AS bytes_in,
           sum(b.covered_s * :out_rate_bytes_s) AS bytes_out,
           sum(b.covered_s * (:in_rate_msg_s + :out_rate_msg_s)) AS messages,
           sum(b.covered_s * :cpu_room) AS cpu_room,
           CASE WHEN bool_and(:in_rate_bytes_s_room IS NOT NULL) THEN sum(b.covered_s * :in_rate_bytes_s_room) END
               AS bytes_in_room,
           CASE WHEN bool_and(:out_rate_bytes_s_room IS NOT NULL) THEN sum(b.covered_s * :out_rate_bytes_s_room) END
               AS bytes_out_room,
           CASE WHEN bool_and(:rate_msg_s_room IS NOT NULL) THEN sum(b.covered_s * :rate_msg_s_room) END
               AS messages_room
    FROM broker_minute b
    WHERE b.covered_s > 0 AND b.minute >= :begin AND b.minute < :end
),
units AS (
    SELECT s.*,
           nullif(:cpu_weight, 0) / nullif(s.cpu_room, 0) AS by_cpu,
           nullif(:bandwidth_weight, 0) / nullif(s.bytes_in_room, 0) AS by_bytes_in,
           nullif(:bandwidth_weight, 0) / nullif(s.bytes_out_room, 0) AS by_bytes_out,
           nullif(:message_rate_weight, 0) / nullif(s.messages_room, 0) AS by_messages
    FROM sums s
)
SELECT u.cpu, u.bytes_in, u.bytes_out, u.messages,
       u.by_cpu * u.time AS cpu_unit,
       u.by_bytes_in * u.time AS bytes_in_unit,
       u.by_bytes_out * u.time AS bytes_out_unit,
       u.by_messages * u.time AS messages_unit,
       greatest(0e0, u.by_cpu * u.cpu, u.by_bytes_in * u.bytes_in, u.by_bytes_out * u.bytes_out,
                u.by_messages * u.messages) AS even,
       (SELECT coalesce(bool_or(:cpu_percent > 0), true) FROM bundle_total b WHERE b.at >= :begin AND b.at < :end)
           AS measured
FROM units u
