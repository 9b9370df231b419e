-- Which rows break the contract of a ratings table? Grain: one row per such row of ratings and
-- problem. Each problem is a query of its own, because the statistics of a Parquet file answer most
-- of them without reading rows. The statistics leave NaN out, so isfinite finds it, not a
-- comparison.
select
    pair_id, source, response, rule_id, rating, 'pair_id is null' as problem
from ratings
where pair_id is null

union all

select
    pair_id, source, response, rule_id, rating, 'source is null'
from ratings
where source is null

union all

select
    pair_id, source, response, rule_id, rating, 'rule_id is null'
from ratings
where rule_id is null

union all

select
    pair_id, source, response, rule_id, rating, 'response is null'
from ratings
where response is null

union all

select
    pair_id, source, response, rule_id, rating, 'response is neither "chosen" nor "rejected"'
from ratings
where response not in ('chosen', 'rejected')

union all

select
    pair_id, source, response, rule_id, rating, 'rating is not in [0, 1]'
from ratings
where (rating < 0 or rating > 1) and isfinite(rating::double)

union all

select
    pair_id, source, response, rule_id, rating, 'rating is not in [0, 1]'
from ratings
where not isfinite(rating::double)
