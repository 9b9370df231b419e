-- What a list shows of the texts of some pairs. Grain: one row per place.
select place, pair_id, source, left(prompt[-1].content, $excerpt) as opening
from texts
where place in (select unnest($places::integer[]))
