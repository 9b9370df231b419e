-- How often does each rule rate the chosen response higher? Accuracy is given under each of the
-- four tie policies, over the pairs whose two responses the rule rated.
-- Grain: one row per (source, rule_id).
with

compared as (

    select
        source,
        pair_id,
        rule_id,
        max(rating) filter (where response = 'chosen')
            - max(rating) filter (where response = 'rejected') as margin
    from ratings
    group by source, pair_id, rule_id

),

outcomes as (

    select
        source,
        rule_id,
        count(margin) as num_pairs,
        count(*) filter (where margin > 0) as num_wins,
        count(*) filter (where margin < 0) as num_losses,
        count(*) filter (where margin = 0) as num_ties,
        avg(margin) as mean_margin,
        stddev_samp(margin) as sd_margin
    from compared
    group by source, rule_id

)

select
    source,
    rule_id,
    num_pairs,
    num_ties / nullif(num_pairs, 0) as tie_rate,
    (num_wins + num_ties / 2) / nullif(num_pairs, 0) as half_accuracy,
    num_wins / nullif(num_pairs, 0) as strict_accuracy,
    num_wins / nullif(num_wins + num_losses, 0) as untied_accuracy,
    (num_wins + num_ties) / nullif(num_pairs, 0) as inclusive_accuracy,
    mean_margin,
    sd_margin
from outcomes
order by source, rule_id
