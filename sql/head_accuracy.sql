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

)

select
    score_key,
    model,
    source,
    head_id,
    count(margin) as num_pairs,
    count(*) filter (where margin = 0) as num_ties,
    avg(case when margin > 0 then 1.0 when margin = 0 then 0.5 when margin < 0 then 0.0 end)
        as half_accuracy,
    count(*) filter (where margin > 0) / nullif(count(margin), 0) as strict_accuracy,
    avg(margin) as mean_margin,
    stddev_samp(margin) as sd_margin
from compared
group by score_key, model, source, head_id
order by score_key, source, head_id
