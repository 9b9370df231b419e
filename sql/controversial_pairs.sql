-- On which pairs do rules disagree most about the better response? Controversy is the share of
-- pairs of rules that rank the two responses in opposite ways, among the rules that rated both.
-- Grain: one row per (source, pair_id) with controversy above 0, the most controversial first.
with

votes as (

    select
        source,
        pair_id,
        count(chosen - rejected) as num_rules,
        count(*) filter (where chosen > rejected) as num_for_chosen,
        count(*) filter (where chosen < rejected) as num_for_rejected,
        max(chosen - rejected) - min(chosen - rejected) as margin_range
    from pair_ratings
    group by source, pair_id

)

select
    source,
    pair_id,
    num_rules,
    num_for_chosen,
    num_for_rejected,
    num_rules - num_for_chosen - num_for_rejected as num_tied,
    2 * num_for_chosen * num_for_rejected / (num_rules * (num_rules - 1)) as controversy,
    margin_range
from votes
where num_for_chosen > 0 and num_for_rejected > 0
order by controversy desc, margin_range desc, source, pair_id
