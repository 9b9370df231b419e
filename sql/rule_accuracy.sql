-- How often does each rule rate the chosen response higher? Accuracy is given under each of the
-- four tie policies, over the pairs whose two responses the rule rated.
-- Grain: one row per (source, rule_id).
select
    outcomes.source,
    outcomes.rule_id,
    outcomes.num_pairs,
    outcomes.tie_rate,
    outcomes.half_accuracy,
    outcomes.strict_accuracy,
    outcomes.untied_accuracy,
    outcomes.inclusive_accuracy,
    margins.mean_margin,
    margins.sd_margin
from rule_outcomes as outcomes
inner join rule_margins as margins
    on outcomes.source = margins.source
    and outcomes.rule_id = margins.rule_id
order by outcomes.source, outcomes.rule_id
