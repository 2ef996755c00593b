-- Each record that could not be read, and each run of records that was gone before the ingest read it.
--
-- appended_at: when the log took it
-- topic: topic of the record
-- partition: partition of the topic
-- position: offset of the record; of missing ones that of the first
-- kind: corrupt, newer (a later release may read it), or missing
-- reason: what is wrong with it
-- key_hex: its key, in hexadecimal digits
-- bytes: length of its value
SELECT q.appended_at,
       q.topic,
       q.partition,
       q.offset AS position,
       q.kind,
       q.reason,
       hex(q.key) AS key_hex,
       octet_length(q.value) AS bytes
FROM quarantine q
