-- How do each rule's ratings rank pairs? Pairs whose two responses the rule rated count; the shares
-- are accuracies under each of the four tie policies, and the share of ties.
-- Grain: one row per (source, rule_id), and one per rule_id over all sources, whose source is null.
with

counts as (

    select
        source,
        rule_id,
        sum(num_pairs)::bigint as num_pairs,
        sum(num_wins)::bigint as num_wins,
        sum(num_ties)::bigint as num_ties,
        sum(num_losses)::bigint as num_losses
    from outcome_counts
    group by grouping sets ((source, rule_id), (rule_id))

)

select
    *,
    unnest(outcome_shares(num_wins, num_ties, num_losses))
from counts
order by source nulls last, rule_id
