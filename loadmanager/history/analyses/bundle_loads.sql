-- What each bundle carries over the window, beside the cluster
-- reads: bundle_hours, cluster
--
-- Sums as in `bundle_hours`; of the busiest hour `most_…`, which have limits. Where the service doesn't measure CPU by
-- bundle, a bundle gets a part of the cluster's CPU by its part of the messages, or else of the bytes (as `part_of`).
-- `…_share`: the part of the cluster's load. `size`: the mean load as a part of the mean broker, in the resource that
-- the bundle uses most (`Ruler.shares`).
WITH sums AS (
    SELECT h.bundle, sum(h.covered_s) AS covered_s,
           sum(h.cpu) AS cpu, sum(h.bytes_in) AS bytes_in, sum(h.bytes_out) AS bytes_out, sum(h.messages) AS messages,
           max(h.keys / h.covered_s) AS most_keys,
           max(h.sessions / h.covered_s) AS most_sessions,
           max(h.messages / h.covered_s) AS most_msg_s,
           max((h.bytes_in + h.bytes_out) / h.covered_s) AS most_bytes_s
    FROM bundle_hours h
    GROUP BY h.bundle
),
cores AS (
    SELECT s.bundle,
           CASE WHEN c.measured THEN s.cpu
                ELSE coalesce(c.cpu * coalesce(s.messages / nullif(c.messages, 0),
                                               (s.bytes_in + s.bytes_out) / nullif(c.bytes_in + c.bytes_out, 0)),
                              0) END AS cpu
    FROM sums s
    CROSS JOIN cluster c
)
SELECT s.bundle, split_part(s.bundle, '/', 1) || '/' || split_part(s.bundle, '/', 2) AS namespace, s.covered_s,
       k.cpu, s.bytes_in, s.bytes_out, s.messages, s.most_keys, s.most_sessions, s.most_msg_s, s.most_bytes_s,
       coalesce(k.cpu / nullif(c.cpu, 0), 0) AS cpu_share,
       coalesce(s.bytes_in / nullif(c.bytes_in, 0), 0) AS bytes_in_share,
       coalesce(s.bytes_out / nullif(c.bytes_out, 0), 0) AS bytes_out_share,
       coalesce(s.messages / nullif(c.messages, 0), 0) AS messages_share,
       coalesce(greatest(k.cpu * c.cpu_unit, s.bytes_in * c.bytes_in_unit, s.bytes_out * c.bytes_out_unit,
                         s.messages * c.messages_unit) / s.covered_s, 0) AS size,
       c.even
FROM sums s
JOIN cores k ON k.bundle = s.bundle
CROSS JOIN cluster c
