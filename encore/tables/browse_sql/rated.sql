-- Ratings of finished shards, the two responses side by side. Grain: one row per (position, run,
-- rule).
create table rated (
    position integer, run run_name, rule rule_name, file integer, chosen double, rejected double,
    chosen_null null_name, rejected_null null_name
)
