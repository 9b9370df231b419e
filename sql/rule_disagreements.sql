-- How often do two rules rank a pair's responses in opposite ways? Only pairs whose two responses
-- both rules rated count; opposed_share is the share among the pairs that neither rule ties.
-- Grain: one row per (source, rule_id, other_rule_id) with rule_id < other_rule_id, and one per
-- (rule_id, other_rule_id) over all sources, whose source is null.
with

rated as (

    select
        source,
        pair_id,
        rule_id,
        sign(chosen - rejected) as direction
    from pair_ratings
    where chosen - rejected is not null

),

rated_by_two as (

    select
        rated.source,
        rated.rule_id,
        others.rule_id as other_rule_id,
        rated.direction,
        others.direction as other_direction
    from rated
    inner join rated as others
        on rated.source = others.source
        and rated.pair_id = others.pair_id
        and rated.rule_id < others.rule_id

),

outcomes as (

    select
        source,
        rule_id,
        other_rule_id,
        count(*) as num_pairs,
        count(*) filter (where direction * other_direction > 0) as num_agreed,
        count(*) filter (where direction * other_direction < 0) as num_opposed,
        count(*) filter (where direction = 0 and other_direction = 0) as num_both_tied
    from rated_by_two
    group by grouping sets ((source, rule_id, other_rule_id), (rule_id, other_rule_id))

)

select
    source,
    rule_id,
    other_rule_id,
    num_pairs,
    num_agreed,
    num_opposed,
    num_both_tied,
    num_pairs - num_agreed - num_opposed - num_both_tied as num_one_tied,
    num_opposed / nullif(num_agreed + num_opposed, 0) as opposed_share
from outcomes
order by source nulls last, rule_id, other_rule_id
