-- Which ratings does each rule give? Only of rules with at most 256 different ones, few enough to
-- count how often each stands against each in a pair. Grain: one row per (rule_id, rating).
with

levels as (

    select
        rule_id,
        rating
    from ratings
    where rating is not null
    group by rule_id, rating

),

rules_of_few_levels as (

    select rule_id from levels group by rule_id having count(*) <= 256

)

select
    levels.rule_id,
    levels.rating
from levels
inner join rules_of_few_levels on levels.rule_id = rules_of_few_levels.rule_id
order by levels.rule_id, levels.rating
