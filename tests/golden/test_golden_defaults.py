"""Golden: the options that are in runs' keys with their defaults, which are left out of the keys.

An option that is added is a line more, and no key of a run without it changes. A default that
changes changes what a key stands for: then the format of identities has to change too.
"""

from __future__ import annotations

import pytest
from pydantic_core import PydanticUndefined, to_jsonable_python

from encore.benchmarks.benchmark_options import (
    BenchmarkConfig,
    BenchmarkScoringConfig,
    PairsConfig,
    RowsConfig,
    VerdictConfig,
)
from encore.core.config import StageConfig, identity_of, keyed_defaults
from encore.model.backbone_options import BackboneConfig
from encore.rating.rating_options import RatingConfig
from encore.rules.rules_options import QuestionConfig
from encore.scoring.scoring_options import ScoringConfig
from encore.training.training_options import TrainingConfig
from tests.golden.same import check_golden

ASKED: tuple[type[StageConfig], ...] = (
    RatingConfig,
    ScoringConfig,
    QuestionConfig,
    VerdictConfig,
    TrainingConfig,
    BackboneConfig,
    BenchmarkConfig,
    BenchmarkScoringConfig,
    PairsConfig,
    RowsConfig,
)


def test_the_defaults_of_what_is_in_keys():
    defaults = {
        kind.__name__: {
            name: "required" if default is PydanticUndefined else to_jsonable_python(default)
            for name, default in keyed_defaults(kind).items()
        }
        for kind in ASKED
    }
    check_golden("defaults-in-keys", defaults)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of any type
@pytest.mark.parametrize("kind", ASKED)
def test_each_option_that_is_set_changes_the_key(kind):
    defaults = keyed_defaults(kind)
    required = {name: "m" for name, value in defaults.items() if value is PydanticUndefined}
    plain = kind.model_construct(**defaults | required)
    assert identity_of(plain) == required
    for name in kind.model_fields:
        changed = plain.model_copy(update={name: "another value"})
        if name in kind.REPLACED_IN_KEYS:  # its digest stands beside
            assert identity_of(changed) == required
        elif not isinstance(defaults[name], StageConfig):  # the nested class is in the list itself
            assert identity_of(changed) == required | {name: "another value"}
