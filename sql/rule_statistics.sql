-- How spread out are each rule's ratings? Entropy is in nats; it is null for a rule without a
-- rating. The surprisal of a rating is ln(1 / share of its level); entropy is its mean. The top
-- level is the most frequent rating, and the lowest of equally frequent ones. The levels and their
-- counts are listed for rules with at most 256 levels.
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

-- Equally frequent levels have the same surprisal. There are few different frequencies
-- even where all ratings differ, so what follows is cheap.
frequencies as (

    select
        source,
        rule_id,
        rating is null as is_null,
        num_rows,
        count(*) as num_levels,
        min(rating) as lowest_level
    from pooled_levels
    group by source, rule_id, rating is null, num_rows

),

masses as (

    select
        source,
        rule_id,
        is_null,
        num_rows,
        num_levels,
        lowest_level,
        num_rows / sum(num_rows * num_levels) over (partition by source, rule_id, is_null) as p
    from frequencies

),

-- Sums have a fixed order, so that their last bits depend on neither threads nor files.
spreads as (

    select
        source,
        rule_id,
        coalesce(sum(num_rows * num_levels) filter (where not is_null), 0)::bigint as num_ratings,
        coalesce(sum(num_rows) filter (where is_null), 0)::bigint as num_unparsed,
        coalesce(sum(num_levels) filter (where not is_null), 0)::bigint as num_levels,
        sum(num_levels * p * ln(1 / p) order by num_rows) filter (where not is_null)
            as entropy_nats,
        sum(num_levels * p * pow(ln(1 / p), 2) order by num_rows) filter (where not is_null)
            as mean_squared_surprisal,
        arg_max(lowest_level, num_rows) filter (where not is_null) as top_level,
        max(p) filter (where not is_null) as top_level_share
    from masses
    group by source, rule_id

),

listed as (

    select
        pooled_levels.source,
        pooled_levels.rule_id,
        list(pooled_levels.rating order by pooled_levels.rating) as levels,
        list(pooled_levels.num_rows order by pooled_levels.rating) as num_ratings_of_level
    from pooled_levels
    inner join spreads
        on pooled_levels.rule_id = spreads.rule_id
        and pooled_levels.source is not distinct from spreads.source
    where pooled_levels.rating is not null and spreads.num_levels <= 256
    group by pooled_levels.source, pooled_levels.rule_id

)

select
    spreads.*,
    listed.levels,
    listed.num_ratings_of_level
from spreads
left join listed
    on spreads.rule_id = listed.rule_id
    and spreads.source is not distinct from listed.source
order by spreads.source nulls last, spreads.rule_id
