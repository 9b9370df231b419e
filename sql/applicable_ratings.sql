-- Does a rule apply to a response? It does if there is a rating; it does not if the judge says so;
-- otherwise applies is null. Ratings without a column null_reason have no such answer.
-- Grain: one row per row of ratings.
with

-- The second part has no row, but a column null_reason if ratings have none.
reasons as (

    select * from ratings

    union all by name

    select null::varchar as null_reason where false

)

select
    *,
    case
        when rating is not null then true
        when null_reason = 'does_not_apply' then false
    end as applies
from reasons
