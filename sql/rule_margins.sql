-- By how much does each rule rate chosen responses higher? A margin is rating(chosen) -
-- rating(rejected) of a pair whose two responses the rule rated.
-- Grain: one row per (source, rule_id), and one per rule_id over all sources, whose source is null.
select
    source,
    rule_id,
    avg(chosen - rejected) as mean_margin,
    stddev_samp(chosen - rejected) as sd_margin
from pair_ratings
group by grouping sets ((source, rule_id), (rule_id))
order by source nulls last, rule_id
