-- To how many responses and pairs does each rule apply? Of a pair in num_pairs both answers are
-- known; num_pairs_not_applicable counts all pairs with a response to which the rule does not apply.
-- Grain: one row per (source, rule_id).
select
    source,
    rule_id,
    count(chosen_applies) as num_chosen,
    count(*) filter (where chosen_applies) as num_chosen_applies,
    count(rejected_applies) as num_rejected,
    count(*) filter (where rejected_applies) as num_rejected_applies,
    count(*) filter (where chosen_applies is not null and rejected_applies is not null)
        as num_pairs,
    count(*) filter (where chosen_applies and rejected_applies) as num_both_apply,
    count(*) filter (where not chosen_applies and not rejected_applies) as num_neither_applies,
    count(*) filter (where not chosen_applies or not rejected_applies) as num_pairs_not_applicable
from pair_applicability
group by source, rule_id
order by source, rule_id
