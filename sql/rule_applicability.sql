-- How often does each rule apply? Shares are of the responses, or pairs, of which it is known: with
-- a rating, or with the judge's answer that the rule does not apply. Failed ratings are left out.
-- Grain: one row per (source, rule_id), and one per rule_id over all sources, whose source is null.
with

counts as (

    select
        source,
        rule_id,
        sum(num_chosen)::bigint as num_chosen,
        sum(num_chosen_applies)::bigint as num_chosen_applies,
        sum(num_rejected)::bigint as num_rejected,
        sum(num_rejected_applies)::bigint as num_rejected_applies,
        sum(num_pairs)::bigint as num_pairs,
        sum(num_both_apply)::bigint as num_both_apply,
        sum(num_neither_applies)::bigint as num_neither_applies,
        sum(num_pairs_not_applicable)::bigint as num_pairs_not_applicable
    from applicability_counts
    group by grouping sets ((source, rule_id), (rule_id))

)

select
    *,
    (num_chosen_applies + num_rejected_applies) / nullif(num_chosen + num_rejected, 0) as applies,
    num_chosen_applies / nullif(num_chosen, 0) as applies_to_chosen,
    num_rejected_applies / nullif(num_rejected, 0) as applies_to_rejected,
    num_both_apply / nullif(num_pairs, 0) as applies_to_both
from counts
order by source nulls last, rule_id
