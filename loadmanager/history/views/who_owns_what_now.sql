-- Each bundle that exists, with its owner and state by the last record of the channel that the lake has.
--
-- bundle: its name
-- namespace: the bundle's namespace
-- state: as in the channel: assigned, transferring, unassigned, …
-- owner: broker that holds it, null without
-- owner_incarnation: the process of that broker
-- target: broker that it is going to, null without
-- token: the owner's fencing token
-- since: when the log took the record
-- last_action: what the record did: return, transfer, …
WITH placed AS (
    SELECT t.*, row_number() OVER (PARTITION BY t.partition, t.bundle ORDER BY t.offset DESC, t.ordinal DESC) AS place
    FROM transition t
)
SELECT p.bundle,
       p.namespace,
       p.state,
       p.holder AS owner,
       p.holder_incarnation AS owner_incarnation,
       p.target,
       p.token,
       p.appended_at AS since,
       p.action AS last_action
FROM placed p
WHERE p.place = 1 AND p.state IS NOT NULL
