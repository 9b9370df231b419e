"""How far weights can be trusted: number of ratings, stability of the judge, the theorem."""
