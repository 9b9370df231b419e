-- How are each rule's ratings distributed, finely enough for a kernel density? Ratings are gathered
-- in cells of 1/64 of the bandwidth, which follows Scott's rule with N = ratings: sd (ddof 1) *
-- N^(-1/5). Positions and variances are in bandwidths, counted from the rule's lowest rating.
-- Grain: one row per (source, rule_id, cell) with ratings in it, and one per (rule_id, cell) over
-- all sources, whose source is null. A rule with fewer than two levels has no density and no row.
with

ranges as (

    select
        source,
        rule_id,
        sum(num_rows)::bigint as total,
        min(rating) as lowest,
        max(rating) - min(rating) as width
    from rating_levels
    where rating is not null
    group by source, rule_id
    having count(*) > 1

),

-- Sums are of whole numbers, so that their last bit depends on neither threads nor files: heights
-- above the lowest rating in 2^-52 of the rule's range, then deviations in 2^-46 of it, whose
-- squares add up to less than 2^127.
heights as (

    select
        rating_levels.source,
        rating_levels.rule_id,
        rating_levels.num_rows as num_ratings,
        rating_levels.rating - ranges.lowest as height,
        ranges.total,
        ranges.width,
        round((rating_levels.rating - ranges.lowest) / ranges.width * pow(2, 52))::bigint as steps
    from rating_levels
    inner join ranges
        on rating_levels.rule_id = ranges.rule_id
        and rating_levels.source is not distinct from ranges.source
    where rating_levels.rating is not null

),

means as (

    select
        source,
        rule_id,
        (sum(num_ratings::hugeint * steps) // any_value(total))::bigint as mean_steps
    from heights
    group by source, rule_id

),

bandwidths as (

    select
        heights.source,
        heights.rule_id,
        pow(any_value(heights.total), -0.2) * any_value(heights.width) / pow(2, 46) * sqrt(
            sum(
                heights.num_ratings::hugeint
                * ((heights.steps - means.mean_steps) // 64)
                * ((heights.steps - means.mean_steps) // 64)
            )::double / (any_value(heights.total) - 1)
        ) as bandwidth
    from heights
    inner join means
        on heights.rule_id = means.rule_id
        and heights.source is not distinct from means.source
    group by heights.source, heights.rule_id

),

positions as (

    select
        heights.source,
        heights.rule_id,
        bandwidths.bandwidth,
        heights.num_ratings,
        floor(64 * heights.height / bandwidths.bandwidth) as cell,
        round(
            (
                64 * heights.height / bandwidths.bandwidth
                - floor(64 * heights.height / bandwidths.bandwidth)
            ) * pow(2, 34)
        )::bigint as offset_steps
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
        sum(num_ratings::hugeint * offset_steps) as sum_of_offsets,
        sum(num_ratings::hugeint * offset_steps * offset_steps) as sum_of_squares
    from positions
    group by source, rule_id, bandwidth, cell

)

select
    source,
    rule_id,
    bandwidth,
    num_ratings::bigint as num_ratings,
    (cell + sum_of_offsets::double / num_ratings::double / pow(2, 34)) / 64 as position,
    (num_ratings * sum_of_squares - sum_of_offsets * sum_of_offsets)::double
        / pow(num_ratings::double * pow(2, 34) * 64, 2) as variance
from cells
order by source nulls last, rule_id, cell
