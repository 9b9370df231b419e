-- Do rules whose ratings are spread out agree with people less often? Each row has a rule's entropy
-- (nats) and its accuracy under each of the four tie policies. Accuracy is over the pairs whose two
-- responses the rule rated; coverage is their share of the source's pairs.
-- Grain: one row per (source, rule_id), and one per rule_id over all sources, whose source is null.
with

totals as (

    select
        source,
        count(*) as num_pairs_total
    from (select distinct source, pair_id from ratings)
    group by grouping sets ((source), ())

)

select
    spreads.source,
    spreads.rule_id,
    spreads.num_ratings,
    spreads.num_levels,
    spreads.entropy_nats,
    outcomes.num_pairs,
    outcomes.num_pairs / totals.num_pairs_total as coverage,
    outcomes.tie_rate,
    outcomes.half_accuracy,
    outcomes.untied_accuracy,
    outcomes.strict_accuracy,
    outcomes.inclusive_accuracy
from rule_statistics as spreads
inner join rule_outcomes as outcomes
    on spreads.rule_id = outcomes.rule_id
    and spreads.source is not distinct from outcomes.source
inner join totals on spreads.source is not distinct from totals.source
order by spreads.source nulls last, spreads.rule_id
