-- The rows of rated with two measures of disagreement. Spread: how far apart runs are that prefer
-- different responses of the pair under the rule; null where no run prefers the other one. Distance:
-- from people's label to a rating whose nearest label is another one, the larger of both responses.
create table pair_ratings as
with

contested as (

    select position, rule, max(chosen - rejected) - min(chosen - rejected) as spread
    from rated
    group by position, rule
    having min(chosen - rejected) < 0 and max(chosen - rejected) > 0

),

labelled as (

    select
        position, run, rule, label, low, high,
        if(response = 'chosen', rated.chosen, rated.rejected) as rating
    from people
        join (select position, pair_id, source from texts) using (pair_id, source)
        join rated using (position)
    where rule::varchar = rule_id

),

mislabelled as (

    select position, run, rule, max(abs(rating - label)) as distance
    from labelled
    where rating < low or rating >= high
    group by position, run, rule

)

select rated.*, case when chosen <> rejected then spread end as spread, distance
from rated
    left join contested using (position, rule)
    left join mislabelled using (position, run, rule)
order by position, rule, run
