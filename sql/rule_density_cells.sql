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

-- Every sum has one fixed order, so that its last bit depends on neither threads nor files.
centres as (

    select
        source,
        rule_id,
        min(rating) as lowest,
        sum(num_ratings) as total,
        sum(num_ratings * rating order by rating) / sum(num_ratings) as mean_rating
    from pooled_levels
    group by source, rule_id
    having count(*) > 1

),

centred as (

    select
        pooled_levels.*,
        centres.lowest,
        centres.total,
        pooled_levels.rating - centres.mean_rating as deviation
    from pooled_levels
    inner join centres
        on pooled_levels.rule_id = centres.rule_id
        and pooled_levels.source is not distinct from centres.source

),

scaled as (

    select
        source,
        rule_id,
        num_ratings,
        rating - lowest as height,
        sqrt(sum(num_ratings * deviation * deviation order by rating) over rule / (total - 1))
            * pow(total, -0.2) as bandwidth
    from centred
    window rule as (partition by source, rule_id)

),

positions as (

    select
        source,
        rule_id,
        bandwidth,
        num_ratings,
        floor(64 * height / bandwidth) as cell,
        height / bandwidth - floor(64 * height / bandwidth) / 64 as cell_offset
    from scaled

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
