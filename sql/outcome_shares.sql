-- Which share of pairs is a tie, and which is ranked as people did? A pair is won if its chosen
-- response has the higher rating. A tie counts one half in half_accuracy, is left out of
-- untied_accuracy, and is a miss in strict_accuracy and a hit in inclusive_accuracy. A share of no
-- pair is null.
-- Function: outcome_shares(wins, ties, losses). Reads: nothing. Grain: one value, a struct of shares.
create or replace macro outcome_shares(wins, ties, losses) as struct_pack(
    tie_rate := ties / nullif(wins + ties + losses, 0),
    half_accuracy := (wins + ties / 2) / nullif(wins + ties + losses, 0),
    untied_accuracy := wins / nullif(wins + losses, 0),
    strict_accuracy := wins / nullif(wins + ties + losses, 0),
    inclusive_accuracy := (wins + ties) / nullif(wins + ties + losses, 0)
)
