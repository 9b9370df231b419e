-- How complete is each run? Its planned shards are counted by state; open_shards lists those that
-- are not done.
-- Reads: runs, shards. Grain: one row per run_key.
select
    runs.run_key,
    runs.judge,
    count(*) as num_shards,
    count(*) filter (where shards.state = 'done') as num_done,
    count(*) filter (where shards.state = 'missing') as num_missing,
    count(*) filter (where shards.state = 'damaged') as num_damaged,
    count(*) filter (where shards.state = 'failed') as num_failed,
    coalesce(sum(shards.num_ratings), 0)::bigint as num_ratings,
    coalesce(sum(shards.num_nulls), 0)::bigint as num_nulls,
    list(shards.shard order by shards.shard) filter (where shards.state <> 'done') as open_shards
from runs
inner join shards on runs.run_key = shards.run_key
group by runs.run_key, runs.judge
order by runs.run_key
