-- What weight does each rule have at temperature tau? weight is ENCORE's, the softmax of -entropy
-- (nats) / tau over the rules with all sources pooled. effective_weight is the weight times the
-- standard deviation of rating(chosen) - rating(rejected), margin_sd. A rule without a rating has
-- neither entropy nor weight.
-- Macro: weights_at(tau). The paper uses weights_at(2). Grain: one row per rule_id.
create or replace macro weights_at(tau) as table
with

temperatures as (

    select
        case
            when tau::double > 0 and isfinite(tau::double) then tau::double
            else error('weights_at: tau must be a finite number above 0 (the paper: 2)')
        end as temperature

),

levels as (

    select
        rule_id,
        rating,
        count(*) as num_rows
    from ratings
    group by rule_id, rating

),

masses as (

    select
        rule_id,
        rating,
        num_rows / sum(num_rows) over (partition by rule_id, rating is null) as p
    from levels

),

-- The sum has a fixed order, so that its last bit depends on neither threads nor files.
entropies as (

    select
        rule_id,
        sum(p * ln(1 / p) order by rating) filter (where rating is not null) as entropy_nats
    from masses
    group by rule_id

),

-- The exponent is shifted by the lowest entropy, so that exp cannot overflow for a small tau.
scaled as (

    select
        entropies.rule_id,
        entropies.entropy_nats,
        exp((min(entropies.entropy_nats) over () - entropies.entropy_nats)
            / temperatures.temperature) as mass
    from entropies
    cross join temperatures

),

totals as (

    select sum(mass order by rule_id) as total_mass from scaled

),

compared as (

    select
        rule_id,
        max(rating) filter (where response = 'chosen')
            - max(rating) filter (where response = 'rejected') as margin
    from ratings
    group by source, pair_id, rule_id

),

spreads as (

    select
        rule_id,
        stddev_samp(margin) as margin_sd
    from compared
    group by rule_id

)

select
    scaled.rule_id,
    scaled.entropy_nats,
    scaled.mass / totals.total_mass as weight,
    spreads.margin_sd,
    scaled.mass / totals.total_mass * spreads.margin_sd as effective_weight
from scaled
inner join spreads on scaled.rule_id = spreads.rule_id
cross join totals
order by scaled.rule_id
