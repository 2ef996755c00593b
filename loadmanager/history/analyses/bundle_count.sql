-- Right number of bundles
-- reads: bundle_loads, last_known
-- order: namespace
--
-- How many bundles each namespace should have: fine enough to be balanced, below the limits, and no more.
--
--     parts of a bundle = the most of 1,  ⌈size / (tolerance · even)⌉ where its size is larger than that,
--                         and ⌈fill / FILL_AIMED_AT⌉ where it is beyond a limit
--
-- `size` is the bundle's mean load as a part of the mean broker, `even` the usage if all load were spread evenly.
-- Filling brokers one bundle at a time leaves them within the largest bundle of each other; so with no bundle above
-- tolerance · even, no broker need be beyond tolerance. `fill` is the busiest hour's part of the split limits, for the
-- fullest limit. Cold neighbours are counted as the planner merges them: below `merge_below` of every limit, alone and
-- together.
--
-- One row per namespace with a measured bundle that exists at the window's end. `bundles` that it has (by the channel,
-- else those measured), `measured` of them; size of the `largest` and its name in `bundle`; `allowed` = tolerance ·
-- even (null while the cluster is idle); how many are `too_large` and `over_limits`; how many `parts` splits would add,
-- and how many `merges` are possible; `advised` number of bundles, between `namespace_min_bundles` and
-- `namespace_max_bundles`; `advice`: split, merge or keep.
WITH fills AS (
    SELECT b.*, CASE WHEN b.even >= :idle THEN b.even * :tolerance END AS allowed,
           greatest(0e0, b.most_keys / :limit_keys, b.most_sessions / :limit_sessions, b.most_msg_s / :limit_msg_s,
                    b.most_bytes_s / :limit_bytes_s) AS fill,
           split_part(split_part(b.bundle, '/', -1), '_', 1) AS low,
           split_part(split_part(b.bundle, '/', -1), '_', 2) AS high
    FROM bundle_loads b
    LEFT JOIN (SELECT k.bundle FROM last_known k WHERE NOT k.there) g ON g.bundle = b.bundle
    WHERE g.bundle IS NULL
),
parted AS (
    SELECT f.*,
           CAST(least(:most_parts,
                      greatest(CASE WHEN f.size > f.allowed THEN ceil(f.size / nullif(f.allowed, 0)) ELSE 1e0 END,
                               CASE WHEN f.fill > 1 THEN ceil(f.fill / :fill_aimed_at) ELSE 1e0 END))
                AS bigint) AS parts
    FROM fills f
),
cold AS (
    SELECT p.*, p.fill < :merge_below AND p.parts = 1 AND :limited AS cold FROM parted p
),
begun AS (
    SELECT c.*,
           CASE WHEN c.cold AND lag(c.cold) OVER s AND lag(c.high) OVER s = c.low THEN 0 ELSE 1 END AS begins
    FROM cold c
    WINDOW s AS (PARTITION BY c.namespace ORDER BY c.low)
),
numbered AS (
    SELECT b.*, sum(b.begins) OVER (PARTITION BY b.namespace ORDER BY b.low) AS run FROM begun b
),
runs AS (
    SELECT n.namespace, count(*) AS measured, max(n.size) AS largest,
           max_by(n.bundle, (n.size, n.bundle)) AS bundle, max(n.allowed) AS allowed,
           count_if(n.size > n.allowed) AS too_large, count_if(n.fill > 1) AS over_limits, sum(n.parts - 1) AS parts,
           CASE WHEN bool_and(n.cold)
                THEN greatest(0, count(*) - CAST(greatest(1e0, ceil(greatest(
                         0e0, sum(n.most_keys) / :limit_keys, sum(n.most_sessions) / :limit_sessions,
                         sum(n.most_msg_s) / :limit_msg_s, sum(n.most_bytes_s) / :limit_bytes_s
                     ) / :merge_below)) AS bigint)) ELSE 0 END AS merges
    FROM numbered n
    GROUP BY n.namespace, n.run
),
spaces AS (
    SELECT r.namespace, CAST(sum(r.measured) AS bigint) AS measured, max(r.largest) AS largest,
           max_by(r.bundle, (r.largest, r.bundle)) AS bundle, max(r.allowed) AS allowed,
           CAST(sum(r.too_large) AS bigint) AS too_large, CAST(sum(r.over_limits) AS bigint) AS over_limits,
           CAST(sum(r.parts) AS bigint) AS parts, CAST(sum(r.merges) AS bigint) AS merges
    FROM runs r
    GROUP BY r.namespace
),
existing AS (
    SELECT split_part(k.bundle, '/', 1) || '/' || split_part(k.bundle, '/', 2) AS namespace, count(*) AS existing
    FROM last_known k
    WHERE k.there
    GROUP BY split_part(k.bundle, '/', 1) || '/' || split_part(k.bundle, '/', 2)
),
counted AS (
    SELECT s.*, greatest(e.existing, s.measured) AS bundles
    FROM spaces s
    LEFT JOIN existing e ON e.namespace = s.namespace
),
advised AS (
    SELECT c.*, least(greatest(c.bundles, :most_bundles),
                      greatest(least(c.bundles, :least_bundles),
                               c.bundles + CASE WHEN c.parts > 0 THEN c.parts ELSE -c.merges END)) AS advised
    FROM counted c
)
SELECT a.namespace, a.bundles, a.measured, a.largest, a.bundle, a.allowed,
       a.too_large, a.over_limits, a.parts, a.merges, a.advised,
       CASE WHEN a.advised > a.bundles THEN 'split' WHEN a.advised < a.bundles THEN 'merge' ELSE 'keep' END AS advice
FROM advised a
