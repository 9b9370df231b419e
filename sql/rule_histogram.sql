-- How often did each rule give each rating? Null ratings are left out: null_ratings counts them.
-- Grain: one row per (source, rule_id, rating), and one per (rule_id, rating) over all sources,
-- whose source is null.
with

levels as (

    select
        source,
        rule_id,
        rating,
        count(*) as num_rows
    from ratings
    where rating is not null
    group by source, rule_id, rating

),

pooled_levels as (

    select
        source,
        rule_id,
        rating,
        sum(num_rows)::bigint as num_ratings
    from levels
    group by grouping sets ((source, rule_id, rating), (rule_id, rating))

)

select
    source,
    rule_id,
    rating,
    num_ratings,
    num_ratings / sum(num_ratings) over (partition by source, rule_id) as share
from pooled_levels
order by source nulls last, rule_id, rating
