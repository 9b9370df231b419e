-- What must be known of each rule's ratings for a kernel density? Ratings are gathered in cells of
-- 1/64 of the bandwidth, which is Scott's rule with N = ratings: sd (ddof 1) * N^(-1/5). Positions
-- and variances are in bandwidths, counted from the rule's lowest rating.
-- Grain: one row per (source, rule_id, cell) with ratings in it, and one per (rule_id, cell) over
-- all sources, whose source is null. A rule with fewer than two levels has no density and no row.
with

levels as (

    select
        source,
        rule_id,
        rating,
        count(*) as num_ratings
    from ratings
    where rating is not null
    group by source, rule_id, rating

),

pooled_levels as (

    select
        source,
        rule_id,
        rating,
        sum(num_ratings)::double as num_ratings
    from levels
    group by grouping sets ((source, rule_id, rating), (rule_id, rating))

),

-- Heights above the lowest rating keep their precision where ratings differ in the last digits.
heights as (

    select
        source,
        rule_id,
        num_ratings,
        rating - min(rating) over (partition by source, rule_id) as height
    from pooled_levels

),

-- Every sum has one fixed order, so that its last bit depends on neither threads nor files.
totals as (

    select
        source,
        rule_id,
        sum(num_ratings) as total,
        sum(num_ratings * height order by height) / sum(num_ratings) as mean_height
    from heights
    group by source, rule_id
    having count(*) > 1

),

bandwidths as (

    select
        heights.source,
        heights.rule_id,
        pow(totals.total, -0.2) * sqrt(
            sum(
                heights.num_ratings * pow(heights.height - totals.mean_height, 2)
                order by heights.height
            ) / (totals.total - 1)
        ) as bandwidth
    from heights
    inner join totals
        on heights.rule_id = totals.rule_id
        and heights.source is not distinct from totals.source
    group by heights.source, heights.rule_id, totals.total

),

positions as (

    select
        heights.source,
        heights.rule_id,
        bandwidths.bandwidth,
        heights.num_ratings,
        floor(64 * heights.height / bandwidths.bandwidth) as cell,
        heights.height / bandwidths.bandwidth
            - floor(64 * heights.height / bandwidths.bandwidth) / 64 as cell_offset
    from heights
    inner join bandwidths
        on heights.rule_id = bandwidths.rule_id
        and heights.source is not distinct from bandwidths.source

),

cells as (

    select
        source,
        rule_id,
        bandwidth,
        cell,
        sum(num_ratings) as num_ratings,
        sum(num_ratings * cell_offset order by cell_offset) / sum(num_ratings) as mean_offset,
        sum(num_ratings * cell_offset * cell_offset order by cell_offset) / sum(num_ratings)
            as mean_squared_offset
    from positions
    group by source, rule_id, bandwidth, cell

)

select
    source,
    rule_id,
    bandwidth,
    num_ratings::bigint as num_ratings,
    cell / 64 + mean_offset as position,
    greatest(mean_squared_offset - mean_offset * mean_offset, 0) as variance
from cells
order by source nulls last, rule_id, cell
