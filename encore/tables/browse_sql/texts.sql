-- Every pair with its position in the order of rating plans. Grain: one row per pair.
create table texts as
select (row_number() over (order by pair_id, source) - 1)::integer as position, *
from pairs
order by position
