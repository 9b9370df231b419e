-- What a list shows of some pairs, in their order: the beginning of each, and in every run means
-- over the rules, or figures of one rule. Grain: one row per position.
with

figures as (

    select
        position, run, run::varchar as run_key, avg(chosen) as chosen, avg(rejected) as rejected,
        count(*)::integer as num_rules,
        (2 * count(*) - count(chosen) - count(rejected))::integer as num_nulls,
        (count(*) filter (chosen < rejected))::integer as num_against
    from pair_ratings
    where position in (select unnest($positions::integer[])) and (rule = $rule::rule_name or $rule is null)
    group by position, run

),

by_position as (

    select
        position,
        list({
            'run_key': run_key, 'chosen': chosen, 'rejected': rejected, 'num_rules': num_rules,
            'num_nulls': num_nulls, 'num_against': num_against
        } order by run) as runs
    from figures
    group by position

)

select
    position, pair_id, source, left(prompt[-1].content, $excerpt) as opening,
    coalesce(runs, []) as runs
from texts left join by_position using (position)
where position in (select unnest($positions::integer[]))
order by list_position($positions::integer[], position)
