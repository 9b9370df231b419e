# %% [markdown]
# # From ratings to weights and a report
#
# Which rules do your ratings let you trust, and what is the weight of each? Ratings are numbers from 0 to 1 that a judge gave to the
# two responses of preference pairs, under several rules. Do not use this where pairs have no preferred response:
# without it no accuracy exists.
#
# The ratings here are **synthetic**: those of the demo, which are shipped with ENCORE. Nothing is downloaded.

# %%
from pathlib import Path

import encore
from encore.recipes.shipped_demo import make_demo_study

make_demo_study(Path("demo-study"))
analysis = encore.analyze("demo-study")
analysis

# %% [markdown]
# *Trust* means: the interval of the rule's accuracy on untied pairs lies above 50 %. The intervals hold for all rules at
# once. An undecided rule says how many more pairs would probably decide.

# %%
analysis.rules.to_pandas()[["rule_id", "num_pairs", "entropy_nats", "num_levels"]].head(3)

# %% [markdown]
# ## Weights
#
# ENCORE's weights are the softmax of the negative entropies, divided by τ = 2. They need no labels. Their sum is 1.

# %%
weights = encore.weights(analysis, tau=2.0)
assert abs(sum(weights.weights) - 1) < 1e-9
weights.rows.to_pandas()

# %% [markdown]
# A small τ gives nearly all weight to the rule with the lowest entropy; a large one approaches equal weights.

# %%
for tau in (0.1, 2.0, 100.0):
    vector = encore.weights(analysis, tau=tau)
    print(f"tau {tau:5.1f}: largest weight {max(vector.weights):.3f}")

# %% [markdown]
# ## All schemes on the same pairs
#
# Each row ranks the pairs by the weighted sum of their ratings. Schemes that learn from labels are marked.

# %%
comparison = encore.compare_schemes(analysis)
comparison.rows.to_pandas()[
    ["label", "accuracy_half", "accuracy_low", "accuracy_high", "uses_labels"]
]

# %% [markdown]
# ## The page
#
# One HTML file without references to other servers, with every chart and its figures.

# %%
report = encore.report(analysis, "report.html")
assert report.page.exists()
analysis.plot()
