-- Do rules whose ratings are spread out agree with people less often? Each row has a rule's entropy
-- (nats) and its accuracy under each of the four tie policies. Accuracy is over the pairs whose two
-- responses the rule rated; coverage is their share of the source's pairs.
-- Grain: one row per (source, rule_id), and one per rule_id over all sources, whose source is null.
with

levels as (

    select
        source,
        rule_id,
        rating,
        count(*) as num_rows
    from ratings
    group by source, rule_id, rating

),

pooled_levels as (

    select
        source,
        rule_id,
        rating,
        sum(num_rows)::bigint as num_rows
    from levels
    group by grouping sets ((source, rule_id, rating), (rule_id, rating))

),

masses as (

    select
        source,
        rule_id,
        rating,
        num_rows,
        num_rows / sum(num_rows) over (partition by source, rule_id, rating is null) as p
    from pooled_levels

),

-- The sum has a fixed order, so that its last bit depends on neither threads nor files.
entropies as (

    select
        source,
        rule_id,
        coalesce(sum(num_rows) filter (where rating is not null), 0)::bigint as num_ratings,
        count(rating) as num_levels,
        sum(p * ln(1 / p) order by rating) filter (where rating is not null) as entropy_nats
    from masses
    group by source, rule_id

),

compared as (

    select
        source,
        pair_id,
        rule_id,
        max(rating) filter (where response = 'chosen')
            - max(rating) filter (where response = 'rejected') as margin
    from ratings
    group by source, pair_id, rule_id

),

outcomes as (

    select
        source,
        rule_id,
        count(margin) as num_pairs,
        count(*) filter (where margin > 0) as num_wins,
        count(*) filter (where margin < 0) as num_losses,
        count(*) filter (where margin = 0) as num_ties
    from compared
    group by grouping sets ((source, rule_id), (rule_id))

),

totals as (

    select
        source,
        count(*) as num_pairs_total
    from (select distinct source, pair_id from compared)
    group by grouping sets ((source), ())

)

select
    entropies.source,
    entropies.rule_id,
    entropies.num_ratings,
    entropies.num_levels,
    entropies.entropy_nats,
    outcomes.num_pairs,
    outcomes.num_pairs / totals.num_pairs_total as coverage,
    outcomes.num_ties / nullif(outcomes.num_pairs, 0) as tie_rate,
    (outcomes.num_wins + outcomes.num_ties / 2) / nullif(outcomes.num_pairs, 0) as half_accuracy,
    outcomes.num_wins / nullif(outcomes.num_wins + outcomes.num_losses, 0) as untied_accuracy,
    outcomes.num_wins / nullif(outcomes.num_pairs, 0) as strict_accuracy,
    (outcomes.num_wins + outcomes.num_ties) / nullif(outcomes.num_pairs, 0) as inclusive_accuracy
from entropies
inner join outcomes
    on entropies.rule_id = outcomes.rule_id
    and entropies.source is not distinct from outcomes.source
inner join totals on entropies.source is not distinct from totals.source
order by entropies.source nulls last, entropies.rule_id
