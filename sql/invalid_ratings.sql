-- Which rows break the contract of a ratings table? Grain: one row per such row of ratings.
-- NaN is asked for on its own: the statistics of a Parquet file do not count it, so a comparison may
-- be answered from them without a look at the rows.
select
    pair_id,
    source,
    response,
    rule_id,
    rating,
    case
        when pair_id is null then 'pair_id is null'
        when source is null then 'source is null'
        when rule_id is null then 'rule_id is null'
        when response is null then 'response is null'
        when response not in ('chosen', 'rejected')
            then 'response is neither "chosen" nor "rejected"'
        else 'rating is not in [0, 1]'
    end as problem
from ratings
where
    pair_id is null
    or source is null
    or rule_id is null
    or response is null
    or response not in ('chosen', 'rejected')
    or not (rating between 0 and 1)
    or not isfinite(rating::double)
