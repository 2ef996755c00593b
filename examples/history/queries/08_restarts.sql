-- Which brokers started again, and how long were they silent before?
SELECT b.broker,
       b.incarnation,
       b.first_report_at,
       b.silent_s
FROM brokers_and_their_restarts b
WHERE b.silent_s IS NOT NULL
ORDER BY b.first_report_at
