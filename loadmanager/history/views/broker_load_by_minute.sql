-- What each broker used, minute by minute: means of its reports, weighted by time.
--
-- minute: begin of the minute
-- broker: its name
-- incarnation: number of its process; each start has a higher one
-- covered_s: seconds of the minute in which a report was in force
-- cpu_percent: mean use of its own cores, 0 to 100
-- cpu_percent_max: greatest use of its own cores in a report, 0 to 100
-- memory_percent: mean use of its memory, 0 to 100
-- rate_msg_s: messages per second, in and out
-- in_rate_bytes_s: bytes per second that came in
-- out_rate_bytes_s: bytes per second that went out
-- bundles: mean number of bundles that it held
-- cpu_cores: cores that it declares, null without
SELECT m.minute,
       m.broker,
       m.incarnation,
       m.covered_s,
       m.cpu_percent,
       m.cpu_percent_max,
       m.memory_percent,
       m.in_rate_msg_s + m.out_rate_msg_s AS rate_msg_s,
       m.in_rate_bytes_s,
       m.out_rate_bytes_s,
       m.bundles,
       m.capacity['cpu'] AS cpu_cores
FROM broker_minute m
