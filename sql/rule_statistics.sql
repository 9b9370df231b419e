-- How spread out are each rule's ratings? Entropy is in nats; it is null for a rule without a
-- rating. The surprisal of a rating is ln(1 / share of its level); entropy is its mean. The top
-- level is the most frequent rating, and the lowest of equally frequent ones. The levels and their
-- counts are listed for rules with at most 256 levels. All figures are of ratings that are there: a
-- null rating is unparsed, or the rule does not apply (num_not_applicable).
-- Grain: one row per (source, rule_id), and one per rule_id over all sources, whose source is null.
with

-- Equally frequent levels have the same surprisal. There are few different frequencies
-- even where all ratings differ, so what follows is cheap.
frequencies as (

    select
        source,
        rule_id,
        rating is null as is_null,
        num_rows,
        count(*) as num_levels,
        sum(num_not_applicable) as num_not_applicable,
        min(rating) as lowest_level
    from rating_levels
    group by source, rule_id, rating is null, num_rows

),

masses as (

    select
        source,
        rule_id,
        is_null,
        num_rows,
        num_levels,
        num_not_applicable,
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
        coalesce(sum(num_rows - num_not_applicable) filter (where is_null), 0)::bigint
            as num_unparsed,
        sum(num_not_applicable)::bigint as num_not_applicable,
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
        rating_levels.source,
        rating_levels.rule_id,
        list(rating_levels.rating order by rating_levels.rating) as levels,
        list(rating_levels.num_rows order by rating_levels.rating) as num_ratings_of_level
    from rating_levels
    inner join spreads
        on rating_levels.rule_id = spreads.rule_id
        and rating_levels.source is not distinct from spreads.source
    where rating_levels.rating is not null and spreads.num_levels <= 256
    group by rating_levels.source, rating_levels.rule_id

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
