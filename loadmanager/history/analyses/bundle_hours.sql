-- Load of each bundle by the hour
-- reads: bundle_minute
--
-- `hour` counts since 1970, UTC. Sums over the time that is covered (`covered_s`): core seconds, bytes, messages, and
-- `keys` and `sessions` times seconds. Add them up for longer times.
SELECT b.bundle, CAST(floor(unix_micros(b.minute) / 3600e6) AS bigint) AS hour,
       sum(b.covered_s) AS covered_s,
       sum(b.covered_s * :cpu_percent / 100) AS cpu,
       sum(b.covered_s * :in_rate_bytes_s) AS bytes_in,
       sum(b.covered_s * :out_rate_bytes_s) AS bytes_out,
       sum(b.covered_s * (:in_rate_msg_s + :out_rate_msg_s)) AS messages,
       sum(b.covered_s * :keys) AS keys,
       sum(b.covered_s * :sessions) AS sessions
FROM bundle_minute b
WHERE b.covered_s > 0 AND b.minute >= :begin AND b.minute < :end
GROUP BY b.bundle, CAST(floor(unix_micros(b.minute) / 3600e6) AS bigint)
