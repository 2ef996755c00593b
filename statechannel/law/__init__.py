"""The law: records, the one table that judges them, splits and merges, snapshots. Pure: no clock, no socket."""
