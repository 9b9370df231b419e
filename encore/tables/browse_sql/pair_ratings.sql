-- The rows of rated with spread: how far apart runs are that prefer different responses of the
-- pair under the rule; null where no run prefers the other one.
create table pair_ratings as
with

contested as (

    select position, rule, max(chosen - rejected) - min(chosen - rejected) as spread
    from rated
    group by position, rule
    having min(chosen - rejected) < 0 and max(chosen - rejected) > 0

)

select rated.*, case when chosen <> rejected then spread end as spread
from rated left join contested using (position, rule)
order by position, rule, run
