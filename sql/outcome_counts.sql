-- In how many pairs does each rule rate the chosen response higher, both the same, or the rejected
-- one higher? Pairs whose two responses the rule rated count.
-- Grain: one row per (source, rule_id).
select
    source,
    rule_id,
    count(chosen - rejected) as num_pairs,
    count(*) filter (where chosen > rejected) as num_wins,
    count(*) filter (where chosen = rejected) as num_ties,
    count(*) filter (where chosen < rejected) as num_losses
from pair_ratings
group by source, rule_id
order by source, rule_id
