-- Every pair with its place in the order of rating plans. Grain: one row per pair.
create table texts as
select (row_number() over (order by pair_id, source) - 1)::integer as place, *
from pairs
order by place
