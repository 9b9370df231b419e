-- Does a rule apply to the two responses of a pair? It is null where that is not known.
-- Grain: one row per (source, pair_id, rule_id).
select
    source,
    pair_id,
    rule_id,
    bool_or(applies) filter (where response = 'chosen') as chosen_applies,
    bool_or(applies) filter (where response = 'rejected') as rejected_applies
from applicable_ratings
group by source, pair_id, rule_id
