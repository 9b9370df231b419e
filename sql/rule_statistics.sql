-- How spread out are each rule's ratings? Entropy is in nats; a rule without any rating has none.
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

)

-- The sum has one fixed order, so that its last bit depends on neither threads nor files.
select
    source,
    rule_id,
    coalesce(sum(num_rows) filter (where rating is not null), 0)::bigint as num_ratings,
    coalesce(sum(num_rows) filter (where rating is null), 0)::bigint as num_unparsed,
    count(rating) as num_levels,
    sum(p * ln(1 / p) order by rating) filter (where rating is not null) as entropy_nats
from masses
group by source, rule_id
order by source nulls last, rule_id
