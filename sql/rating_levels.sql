-- How many rows have each rating of each rule? A null rating is a level of its own; of its rows
-- num_not_applicable say that the rule does not apply.
-- Grain: one row per (source, rule_id, rating), and one per (rule_id, rating) over all sources,
-- whose source is null.
with

levels as (

    select
        source,
        rule_id,
        rating,
        count(*) as num_rows,
        count(*) filter (where not applies) as num_not_applicable
    from applicable_ratings
    group by source, rule_id, rating

)

select
    source,
    rule_id,
    rating,
    sum(num_rows)::bigint as num_rows,
    sum(num_not_applicable)::bigint as num_not_applicable
from levels
group by grouping sets ((source, rule_id, rating), (rule_id, rating))
order by source nulls last, rule_id, rating
