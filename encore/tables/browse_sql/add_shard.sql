-- Add the ratings of one shard's file, whose number stands in braces.
insert into rated
select
    position, run_key, rule_id, {file},
    any_value(rating) filter (response = 'chosen'),
    any_value(rating) filter (response = 'rejected'),
    any_value(null_reason) filter (response = 'chosen'),
    any_value(null_reason) filter (response = 'rejected')
from shard_{file} join texts using (pair_id, source)
group by position, run_key, rule_id
