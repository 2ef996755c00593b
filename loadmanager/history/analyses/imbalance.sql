-- Imbalance over time
-- reads: usage_minutes
-- order: minute, resource
--
-- One row per minute and resource. `brokers` (how many took part, as the mean over the minute), `mean`, `std` and `max`
-- of their usages, weighted by the time that each took part; `max_over_mean` (1 where all are idle); `broker`, the
-- fullest; `even`, the usage if all load were spread by capacity; `allowed` = max(IDLE, (1 + tolerance) · even);
-- `above_s`, how long the fullest was beyond it. It says how far from even, not why; `benefit` compares it with
-- decisions. Minutes without any report are missing.
SELECT u.* FROM usage_minutes u WHERE u.minute >= :begin AND u.minute < :end
