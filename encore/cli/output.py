"""Tables of the commands, how their cells show figures, and warnings that several commands have.

Rules are numbered 1…R as in the report, so that no name is broken over lines at 80 columns; a
legend under the tables has the names.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rich import box
from rich.columns import Columns
from rich.padding import Padding
from rich.table import Table

from encore.core import number_text
from encore.core.errors import EncoreError, StudyIncompleteError
from encore.core.number_text import NONE, number
from encore.core.terminal import minus_signs, out, print_json, say, visible, warn
from encore.demo import JUDGE_NAME

if TYPE_CHECKING:
    from encore.data.rating_runs import RatingManifest
    from encore.data.study_config import RatingsConfig
    from encore.warehouse import Ratings

#: What a command prints for people, one after the other.
Shown = Table | Padding | str

_MIN_FIRST_COLUMN = 12
#: Between two columns, and for both edges together.
_GAP = 2
_WORD = re.compile(r"[^\W\d_]{3}")

#: The columns of a table: what each is called, and the attribute that it shows, or a value.
TableColumns = Mapping[str, str | Callable[[Any], object]]


def opened_ratings(config: RatingsConfig) -> Ratings:
    """Open the ratings that a command is about; warn of what in them is synthetic."""
    from encore.warehouse import open_ratings

    ratings = open_ratings(config.ratings, run=config.run, judge=config.judge)
    warn_of_synthetic(ratings.synthetic)
    return ratings


def show_result(
    found: Any,
    shown: Iterable[Shown],
    notes: Iterable[str] = (),
    *,
    as_json: bool,
    synthetic: Sequence[str] = (),
    ratings: Ratings | None = None,
) -> None:
    """Print what a command found, as JSON or as tables and text, then its notes.

    A table without rows is left out, and lines of text are not broken.

    Raises:
        StudyIncompleteError: Shards of the ratings' run are missing.
    """
    if as_json:
        print_json(found)
    for one in () if as_json else shown:
        if isinstance(one, str):
            out.print(visible(minus_signs(one)), soft_wrap=True)
        elif not isinstance(one, Table) or one.rows:
            out.print(one)
    for note in notes:
        say(f"note: {minus_signs(note)}")
    warn_of_synthetic(synthetic)
    if ratings is not None:
        exit_if_incomplete(
            ratings.num_missing_shards, ratings.num_shards, enough=ratings.sufficiency_note
        )


def require_packages(packages: Iterable[str], *, doing: str, extras: str) -> None:
    """Refuse what needs packages that are not installed.

    Raises:
        EncoreError: Which, and how to install them.
    """
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        raise EncoreError(
            f"{doing} needs {', '.join(absent)}, not installed here; install what is missing with "
            f"pip install 'encore-reward[{extras}]'"
        )


def exit_if_incomplete(num_missing_shards: int, num_shards: int, *, enough: str = "") -> None:
    """Say that planned shards are not in the figures.

    Raises:
        StudyIncompleteError: Some are missing, and those that are there are not ``enough``.
    """
    if enough:
        say(f"note: {enough}")
    elif num_missing_shards:
        raise StudyIncompleteError(
            f"{num_missing_shards} of {num_shards} shards missing, damaged or failed and not in "
            "these figures; `encore status` lists them, `encore rate` with the same parameters "
            "rates exactly these"
        )


def warn_of_failures(failures: Mapping[int, str], num_shards: int) -> None:
    """Say which shards failed, and why.

    Raises:
        StudyIncompleteError: Some did.
    """
    for index, error in failures.items():
        say(f"shard {index}: {error}")
    if failures:
        raise StudyIncompleteError(
            f"{len(failures)} of {num_shards} shards failed; run the same command again for only "
            "these"
        )


def warn_of_synthetic(parts: Sequence[str]) -> None:
    """Warn that a result is about something made up."""
    if parts:
        words = ", ".join(parts)
        warn(f"synthetic: {words}; read these figures as an example, not as evidence")


def warn_of_unused(given: Mapping[str, object], *, who: str, used: Collection[str] = ()) -> None:
    """Warn of every option that was given and changes nothing.

    Args:
        given: Values by option; None: not given.
        who: What does not read the others.
        used: The options that are read.
    """
    for name, value in given.items():
        if value is not None and name not in used:
            shown = f"{value:g}" if isinstance(value, float) else value
            warn(f"{who} has no use for --{name.replace('_', '-')} {shown}: it changes nothing")


def compact_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = ""
) -> Table:
    """A table without vertical rules that fits a narrow terminal.

    First cells are wrapped at hyphens, as rule ids have them, not in the middle of a word. Columns
    of figures stand to the right.
    """
    lines = [[visible(_cell(value)) for value in row] for row in rows]
    others = [*zip(columns, *lines, strict=True)][1:]
    width = out.width - sum(_GAP + max(map(len, column)) for column in others) - _GAP
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.pad_edge, table.padding = False, (0, 0, 0, 1)
    for name, *cells in zip(columns, *lines, strict=True):
        table.add_column(
            visible(name), justify="left" if any(map(_WORD.search, cells)) else "right"
        )
    wrap = textwrap.TextWrapper(max(width, _MIN_FIRST_COLUMN), break_long_words=False)
    for first, *line in lines:
        table.add_row("\n".join(wrap.wrap(first)), *line)
    return table


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else number(value)


def record_table(records: Iterable[Any], columns: TableColumns, *, title: str = "") -> Table:
    """A table with a row for each record."""
    cells = [attrgetter(one) if isinstance(one, str) else one for one in columns.values()]
    rows = [[show(record) for show in cells] for record in records]
    return compact_table(tuple(columns), rows, title=title)


def rule_table(
    rule_ids: Sequence[str], records: Iterable[Any], columns: TableColumns, *, title: str
) -> Table:
    """A table with a row for each record of a rule, which begins with the rule's number."""
    numbered: TableColumns = {"#": lambda one: rule_ids.index(one.rule_id) + 1}
    return record_table(records, {**numbered, **columns}, title=title)


def rule_legend(rule_ids: Sequence[str]) -> Padding:
    """The rules by number, several on a line where they fit."""
    wide = len(str(len(rule_ids)))
    entries = [f"{n:>{wide}} {visible(rule_id)}" for n, rule_id in enumerate(rule_ids, start=1)]
    return Padding(Columns(entries, equal=True), (0, 0, 1, 0))


def percent(value: float | None) -> str:
    """Return a share for a table, e.g. ``12.3%``; a dash for None."""
    return number_text.percent(value, unit="%")


def span(
    low: float | None, high: float | None, show: Callable[[float | None], str] = percent
) -> str:
    """An interval for a table."""
    return NONE if low is None or high is None else f"{show(low)}…{show(high)}"


def percent_of(name: str) -> Callable[[Any], str]:
    """A column with a share."""
    share = attrgetter(name)
    return lambda record: percent(share(record))


def span_of(name: str, show: Callable[[float | None], str] = percent) -> Callable[[Any], str]:
    """A column with an interval."""
    ends = attrgetter(f"{name}_low", f"{name}_high")
    return lambda record: span(*ends(record), show)


def estimate_of(name: str, show: Callable[[float | None], str] = number) -> Callable[[Any], str]:
    """A column with an `encore.analysis.rater_agreement.Estimate` and its interval."""
    estimate = attrgetter(name)

    def cell(record: Any) -> str:
        found = estimate(record)
        ends = f" ({span(found.low, found.high, show)})"
        return show(found.value) + ends * (found.value is not None)

    return cell


def shown_judge(manifest: RatingManifest) -> str:
    """A run's judge by name; that of the demo has none but its folder's, ``judge``."""
    return JUDGE_NAME if manifest.synthetic else f"judge {manifest.judge}"
