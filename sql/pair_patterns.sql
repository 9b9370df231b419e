-- Which rules rate a pair's chosen response higher, which lower, which the same? Accuracies, tie
-- rates, coverage and the null distribution of all rules together follow from these counts.
-- Grain: one row per (source, wins, losses, ties). Each of the three has one digit per rule, in the
-- order of rule_id; a rule that did not rate both responses has 0 in all three.
with

rules as (

    select
        rule_id,
        row_number() over (order by rule_id) - 1 as rule_index,
        count(*) over () as num_rules
    from (select distinct rule_id from ratings)

),

rule_bits as (

    select
        rule_id,
        set_bit(repeat('0', num_rules::integer)::bit, rule_index::integer, 1) as rule_bit
    from rules

),

pairs as (

    select
        pair_ratings.source,
        pair_ratings.pair_id,
        bit_or(rule_bits.rule_bit) filter (where chosen > rejected) as wins,
        bit_or(rule_bits.rule_bit) filter (where chosen < rejected) as losses,
        bit_or(rule_bits.rule_bit) filter (where chosen = rejected) as ties,
        sum(pair_ratings.num_repeats) as num_repeats
    from pair_ratings
    inner join rule_bits on pair_ratings.rule_id = rule_bits.rule_id
    group by pair_ratings.source, pair_ratings.pair_id

),

no_rule as (

    select repeat('0', count(*)::integer) as no_bits from rules

)

select
    pairs.source,
    coalesce(pairs.wins::varchar, no_rule.no_bits) as wins,
    coalesce(pairs.losses::varchar, no_rule.no_bits) as losses,
    coalesce(pairs.ties::varchar, no_rule.no_bits) as ties,
    count(*) as num_pairs,
    sum(pairs.num_repeats)::bigint as num_repeats
from pairs
cross join no_rule
group by all
order by all
