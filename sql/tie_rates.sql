-- In how many pairs does each rule rate both responses equally, in each run? Ties of the expected
-- rating, which `--decode expected` records beside the rating, are counted too.
-- Reads: all_ratings, runs. Grain: one row per (run_key, rule_id) with a pair whose responses both
-- have a rating.
with

pairs as (

    select
        run_key,
        rule_id,
        any_value(rating) filter (where response = 'chosen') as chosen,
        any_value(rating) filter (where response = 'rejected') as rejected,
        any_value(expected_rating) filter (where response = 'chosen') as expected_chosen,
        any_value(expected_rating) filter (where response = 'rejected') as expected_rejected
    from all_ratings
    where rating is not null
    group by run_key, source, pair_id, rule_id

)

select
    pairs.run_key,
    runs.judge,
    runs.layout,
    runs.decode,
    pairs.rule_id,
    count(*) as num_pairs,
    outcome_shares(
        count(*) filter (where pairs.chosen > pairs.rejected),
        count(*) filter (where pairs.chosen = pairs.rejected),
        count(*) filter (where pairs.chosen < pairs.rejected)
    ).tie_rate as tie_rate,
    outcome_shares(
        count(*) filter (where pairs.expected_chosen > pairs.expected_rejected),
        count(*) filter (where pairs.expected_chosen = pairs.expected_rejected),
        count(*) filter (where pairs.expected_chosen < pairs.expected_rejected)
    ).tie_rate as expected_tie_rate
from pairs
inner join runs on pairs.run_key = runs.run_key
where pairs.chosen is not null and pairs.rejected is not null
group by all
order by pairs.rule_id, pairs.run_key
