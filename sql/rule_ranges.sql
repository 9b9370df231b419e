-- Which range do each rule's ratings have, and how many lie outside [0, 1]? Nulls, NaN and infinite
-- ratings are left out.
-- Grain: one row per rule_id.
select
    rule_id,
    min(rating) as low,
    max(rating) as high,
    count(*) as num_ratings,
    count(*) filter (where rating not between 0 and 1) as num_outside
from ratings
where isfinite(rating)
group by rule_id
order by rule_id
