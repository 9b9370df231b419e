-- Which ratings occur more than once? Grain: one row per repeated (source, pair_id, response,
-- rule_id).
select
    source,
    pair_id,
    response,
    rule_id,
    count(*) as num_rows
from ratings
group by source, pair_id, response, rule_id
having count(*) > 1
order by all
