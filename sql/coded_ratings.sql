-- Which pair, source, rule and response does each rating belong to, as numbers? A pair is a 64-bit
-- hash; sources and rules are numbered from 0 in alphabetical order; a null rating is NaN, so that
-- every column is an array of numbers.
-- Grain: one row per row of ratings, in its order.
with

sources as (

    select
        source,
        row_number() over (order by source) - 1 as source_place
    from (select distinct source from rating_levels where source is not null)

),

rules as (

    select
        rule_id,
        row_number() over (order by rule_id) - 1 as rule_place
    from (select distinct rule_id from rating_levels)

)

select
    hash(ratings.source, ratings.pair_id) as pair_key,
    sources.source_place::integer as source_place,
    rules.rule_place::integer as rule_place,
    (ratings.response = 'rejected')::utinyint as is_rejected,
    coalesce(ratings.rating, 'nan'::double) as rating
from ratings
inner join sources on ratings.source = sources.source
inner join rules on ratings.rule_id = rules.rule_id
