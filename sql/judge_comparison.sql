-- How well do two runs agree on the same responses? They are runs of two judges, or of one judge
-- twice. Only responses with a number in both runs count; agreement is the share of equal ratings.
-- A study of one run has no row.
-- Reads: all_ratings. Grain: one row per (run_key, other_run_key, rule_id) with run_key <
-- other_run_key, all sources pooled.
with

rated as (

    select
        run_key,
        judge,
        source,
        pair_id,
        response,
        rule_id,
        rating
    from all_ratings
    where rating is not null

),

rated_twice as (

    select
        rated.run_key,
        others.run_key as other_run_key,
        rated.judge,
        others.judge as other_judge,
        rated.rule_id,
        rated.rating,
        others.rating as other_rating
    from rated
    inner join rated as others
        on rated.source = others.source
        and rated.pair_id = others.pair_id
        and rated.response = others.response
        and rated.rule_id = others.rule_id
        and rated.run_key < others.run_key

)

select
    run_key,
    other_run_key,
    rule_id,
    judge,
    other_judge,
    count(*) as num_ratings,
    avg(rating) as mean_rating,
    avg(other_rating) as other_mean_rating,
    avg((rating = other_rating)::integer) as agreement,
    avg(abs(rating - other_rating)) as mean_absolute_difference,
    -- A constant has no correlation; rounding errors could produce one.
    case
        when min(rating) < max(rating) and min(other_rating) < max(other_rating)
            then corr(rating, other_rating)
    end as rating_r
from rated_twice
group by run_key, other_run_key, rule_id, judge, other_judge
order by run_key, other_run_key, rule_id
