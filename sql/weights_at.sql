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

-- The exponent is shifted by the lowest entropy, so that exp cannot overflow for a small tau.
scaled as (

    select
        statistics.rule_id,
        statistics.entropy_nats,
        exp((min(statistics.entropy_nats) over () - statistics.entropy_nats)
            / temperatures.temperature) as mass
    from rule_statistics as statistics
    cross join temperatures
    where statistics.source is null

),

totals as (

    select sum(mass order by rule_id) as total_mass from scaled

)

select
    scaled.rule_id,
    scaled.entropy_nats,
    scaled.mass / totals.total_mass as weight,
    margins.sd_margin as margin_sd,
    scaled.mass / totals.total_mass * margins.sd_margin as effective_weight
from scaled
inner join rule_margins as margins
    on scaled.rule_id = margins.rule_id
    and margins.source is null
cross join totals
order by scaled.rule_id
