-- How often did each rule give each rating? Null ratings are left out: null_ratings counts them.
-- Grain: one row per (source, rule_id, rating), and one per (rule_id, rating) over all sources,
-- whose source is null.
select
    source,
    rule_id,
    rating,
    num_rows as num_ratings,
    num_rows / sum(num_rows) over (partition by source, rule_id) as share
from rating_levels
where rating is not null
order by source nulls last, rule_id, rating
