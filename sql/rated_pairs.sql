-- How many pairs of each source are rated, and how many of those does the study still have?
-- Reads: pairs, ratings. Grain: one row per source with ratings.
with

rated as (

    select distinct
        source,
        pair_id
    from ratings

)

select
    rated.source,
    count(*) as num_rated,
    count(pairs.pair_id) as num_found
from rated
left join pairs
    on rated.source = pairs.source
    and rated.pair_id = pairs.pair_id
group by rated.source
order by rated.source
