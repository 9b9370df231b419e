-- Which rules were rated? Grain: one row per rule_id.
select distinct rule_id from ratings order by rule_id
