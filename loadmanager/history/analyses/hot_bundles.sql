-- Hot bundles
-- reads: bundle_loads
-- order: rank
--
-- The bundles that carry the most: at most `options.top` rows, the hottest first. `covered_s` and means over that time
-- (`cores`, `in_rate_bytes_s`, `out_rate_bytes_s`, `rate_msg_s`); `share`, the bundle's largest part of the cluster's
-- load, and in which `resource`; `cumulative`, the sum of shares so far; `size`, its load as a part of the mean broker.
-- Only bundles that brokers reported among their hottest are known; the cluster's load is that of all brokers.
WITH shares AS (
    SELECT b.*, greatest(b.cpu_share, b.bytes_in_share, b.bytes_out_share, b.messages_share) AS share
    FROM bundle_loads b
),
hottest AS (
    SELECT s.* FROM shares s ORDER BY s.share DESC, s.bundle LIMIT :top
)
SELECT row_number() OVER (ORDER BY h.share DESC, h.bundle) AS rank,
       h.bundle, h.namespace, h.covered_s,
       h.cpu / h.covered_s AS cores,
       h.bytes_in / h.covered_s AS in_rate_bytes_s,
       h.bytes_out / h.covered_s AS out_rate_bytes_s,
       h.messages / h.covered_s AS rate_msg_s,
       h.share,
       CASE h.share WHEN h.messages_share THEN 'message rate'
                    WHEN h.cpu_share THEN 'cpu'
                    WHEN h.bytes_out_share THEN 'bandwidth out'
                    ELSE 'bandwidth in' END AS resource,
       h.size,
       sum(h.share) OVER (ORDER BY h.share DESC, h.bundle ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
           AS cumulative
FROM hottest h
