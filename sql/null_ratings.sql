-- How many ratings are null, and for which reason? share is the share of the rule's rows in that
-- run and source.
-- Reads: all_ratings. Grain: one row per (run_key, source, rule_id, null_reason) that occurs.
with

totals as (

    select
        run_key,
        source,
        rule_id,
        count(*) as num_rows
    from all_ratings
    group by run_key, source, rule_id

),

nulls as (

    select
        run_key,
        judge,
        source,
        rule_id,
        null_reason,
        count(*) as num_nulls
    from all_ratings
    where rating is null
    group by run_key, judge, source, rule_id, null_reason

)

select
    nulls.run_key,
    nulls.source,
    nulls.rule_id,
    nulls.null_reason,
    nulls.judge,
    nulls.num_nulls,
    nulls.num_nulls / totals.num_rows as share
from nulls
inner join totals
    on nulls.run_key = totals.run_key
    and nulls.source = totals.source
    and nulls.rule_id = totals.rule_id
order by nulls.run_key, nulls.source, nulls.rule_id, nulls.null_reason
