# %% [markdown]
# # Compare two judges
#
# What differs between the ratings of two judges, or of one judge with two prompts? Of the same pairs: the mean of a rule, its
# entropy, its accuracy, and the weights that follow. Do not compare judges on different pairs.
#
# Both sets of ratings here are **synthetic**: the demo's, and a copy in which "another judge" rates a tenth of the responses at
# random.

# %%
from pathlib import Path

import numpy as np

import encore
from encore.recipes.shipped_demo import make_demo_study

make_demo_study(Path("demo-study"))
ratings = encore.sql("demo-study", "select pair_id, source, response, rule_id, rating from ratings")
first = ratings.to_pandas()
second = first.copy()
generator = np.random.default_rng(0)
is_random = generator.random(len(second)) < 0.1
second.loc[is_random, "rating"] = generator.integers(0, 11, is_random.sum()) / 10
print(f"{is_random.mean():.1%} of {len(second):,} ratings are random in the second set")

# %% [markdown]
# Pairs are matched by `source` and `pair_id`. Intervals are over pairs.

# %%
comparison = encore.compare_runs(first, second)
table = comparison.rules.to_pandas()
table[
    ["rule_id", "correlation_value", "entropy_difference_value", "accuracy_difference_value"]
].head()

# %% [markdown]
# Random ratings raise the entropy of a rule, so ENCORE gives it less weight. It does so for every rule here, because the second
# judge is equally careless under all of them.

# %%
entropies = {
    name: encore.analyze(frame).rules.to_pandas().set_index("rule_id")["entropy_nats"]
    for name, frame in (("first", first), ("second", second))
}
assert (entropies["second"] > entropies["first"]).all()
(entropies["second"] - entropies["first"]).round(3)

# %% [markdown]
# ## What to do with it
#
# * A rule whose accuracy differs between two good judges has a text that can be read in two ways: reword it.
# * A rule whose mean differs, and whose accuracy does not, is used on another scale. Weights change, rankings hardly.
# * To decide which judge is right, ask people: [Answers of people](../agreement.md#let-people-answer-a-sample).
