-- Which rules rate both responses of every pair the same, and not all pairs the same? Such a column
-- of a wide table describes pairs, as an annotator's confidence does. Grain: one row per rule_id.
with

pairs as (

    select
        rule_id,
        min(rating) as low,
        max(rating) as high
    from ratings
    where rating is not null
    group by source, pair_id, rule_id
    having count(distinct response) = 2

)

select rule_id
from pairs
group by rule_id
having bool_and(low = high) and count(*) > 1 and min(low) < max(high)
order by rule_id
