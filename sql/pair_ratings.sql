-- Which ratings did each rule give the two responses of each pair? A missing rating is null.
-- Grain: one row per (source, pair_id, rule_id); num_repeats counts surplus rows of the same
-- rating.
select
    source,
    pair_id,
    rule_id,
    max(rating) filter (where response = 'chosen') as chosen,
    max(rating) filter (where response = 'rejected') as rejected,
    greatest(count(*) filter (where response = 'chosen') - 1, 0)
        + greatest(count(*) filter (where response = 'rejected') - 1, 0) as num_repeats
from ratings
group by source, pair_id, rule_id
order by source, pair_id, rule_id
