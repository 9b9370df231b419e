-- Which ratings did each rule give the two responses of each pair? A missing rating is null.
-- Rows are in no order, because sorting takes as long as grouping. num_repeats counts surplus rows
-- of the same rating.
-- Grain: one row per (source, pair_id, rule_id).
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
