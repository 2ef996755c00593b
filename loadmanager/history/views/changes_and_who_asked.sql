-- Each request that changed something, or was to, or was refused.
--
-- at: when it was asked, by the broker's clock
-- principal: who asked
-- how: how they proved who they are
-- address: where the request came from
-- broker: broker that took it
-- action: what was asked for
-- about: what it was about
-- namespace: the namespace, if it has one
-- result: what became of it
-- status: status of the answer, as in HTTP
-- detail: in words
SELECT a.at,
       a.principal,
       a.how,
       a.address,
       a.broker,
       a.action,
       a.about,
       a.namespace,
       a.result,
       a.status,
       a.detail
FROM audit a
