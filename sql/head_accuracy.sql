-- How often does each head of a reward model rank a pair as people did? A tie counts one half in
-- half_accuracy, and as a miss in strict_accuracy.
-- Reads: head_scores. Grain: one row per (score_key, source, head_id).
with

compared as (

    select
        score_key,
        model,
        source,
        pair_id,
        head_id,
        max(score) filter (where response = 'chosen')::double
            - max(score) filter (where response = 'rejected')::double as margin
    from head_scores
    group by score_key, model, source, pair_id, head_id

),

outcomes as (

    select
        score_key,
        model,
        source,
        head_id,
        count(margin) as num_pairs,
        count(*) filter (where margin > 0) as num_wins,
        count(*) filter (where margin = 0) as num_ties,
        count(*) filter (where margin < 0) as num_losses,
        avg(margin) as mean_margin,
        stddev_samp(margin) as sd_margin
    from compared
    group by score_key, model, source, head_id

)

select
    score_key,
    model,
    source,
    head_id,
    num_pairs,
    num_ties,
    outcome_shares(num_wins, num_ties, num_losses).half_accuracy as half_accuracy,
    outcome_shares(num_wins, num_ties, num_losses).strict_accuracy as strict_accuracy,
    mean_margin,
    sd_margin
from outcomes
order by score_key, source, head_id
