-- What a list shows of some pairs: means over the rules, or of one rule. Grain: one row per
-- (place, run).
select
    place, run::varchar as run_key, avg(chosen) as chosen, avg(rejected) as rejected,
    count(*)::integer as num_rules,
    (2 * count(*) - count(chosen) - count(rejected))::integer as num_nulls,
    (count(*) filter (chosen < rejected))::integer as num_against
from pair_ratings
where place in (select unnest($places::integer[])) and (rule = $rule::rule_name or $rule is null)
group by place, run
order by run
