"""Head scores read back: from here every weighting of the heads is arithmetic.

Suffixes: P pairs, 2 responses (chosen, rejected), R heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.data.records import RESPONSES
from encore.data.study import MARKER
from encore.errors import InputError, StudyIncompleteError
from encore.scoring.score_files import ScoreManifest, choose_scores, head_ids_of, score_status
from encore.weighting.vector import head_weights

_Objects = NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadScores:
    """The scores of both responses of P pairs under R heads, raw and centred.

    Attributes:
        pair_id_P: Id of each pair, text.
        source_P: Data set of each pair, text.
        subset_P: Part of the data set, text, or None.
        score_P2R: Chosen first; float32, shape [P, 2, R].
        head_ids: The heads, in order.
        mean_R: What was subtracted from each head's targets, to be added where a number is shown
            to people; 0 where the file does not say.
    """

    pair_id_P: _Objects
    source_P: _Objects
    subset_P: _Objects
    score_P2R: NDArray[np.float32]
    head_ids: tuple[str, ...]
    mean_R: NDArray[np.float64]

    @property
    def num_pairs(self) -> int:
        """P."""
        return len(self.pair_id_P)

    def take(self, row_N: NDArray[np.int64]) -> HeadScores:
        """Some pairs, by index."""
        return replace(
            self,
            pair_id_P=self.pair_id_P[row_N],
            source_P=self.source_P[row_N],
            subset_P=self.subset_P[row_N],
            score_P2R=self.score_P2R[row_N],
        )

    def compose(self, weights: Mapping[str, float]) -> NDArray[np.float64]:
        """The weighted sum of the heads' scores: reward_P2 (paper, eq. "encore").

        Args:
            weights: Of every head, by its id. The composed reward of a plain export of the same
                weights is this number.

        Raises:
            InputError: See `encore.weighting.vector.head_weights`.
        """
        return self.score_P2R.astype(np.float64) @ head_weights(weights, head_ids=self.head_ids)


def read_head_scores(path: Path) -> HeadScores:
    """The head scores of a study, of one scoring's folder, or of any Parquet of their schema.

    Args:
        path: A study with one scoring, a folder that `encore score` wrote, a Parquet file, or a
            folder of Parquet files.

    Raises:
        InputError: no head scores; a response twice, missing, or without a finite score.
        StudyIncompleteError: shards of the scoring are missing or damaged.
    """
    folder = choose_scores(path) if (path / MARKER).is_file() else path
    if (folder / ScoreManifest.FILE).is_file():
        status = score_status(folder)
        if problems := status.problems:
            first = problems[0]
            raise StudyIncompleteError(
                f"{folder}: {len(problems)} of {len(status.shards)} shards are not done (shard "
                f"{first.index}: {first.state}); run the same `encore score` again"
            )
        mean_R = np.array(status.manifest.mean, dtype=np.float64)
        return _scores(_read(status.paths), name=str(folder), mean_R=mean_R)
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths or not all(one.is_file() for one in paths):
        raise InputError(
            f"{path}: no head scores here; expected a study, a folder that `encore score` wrote, "
            "or Parquet"
        )
    return _scores(_read(paths), name=str(path), mean_R=None)


def _read(paths: Sequence[Path]) -> pa.Table:
    try:
        return pa.concat_tables([pq.read_table(one, partitioning=None) for one in paths])
    except (pa.ArrowException, OSError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(
            f"{paths[0]}: cannot be read as Parquet of one schema ({problem}); score again"
        ) from error


def _scores(table: pa.Table, *, name: str, mean_R: NDArray[np.float64] | None) -> HeadScores:
    head_ids = head_ids_of(table.schema, name=name)
    table = _paired(table, name=name)
    columns = [table[head_id].to_numpy() for head_id in head_ids]  # a null becomes NaN
    score_NR = np.stack(columns, axis=1).astype(np.float32)
    is_bad_N = ~np.isfinite(score_NR).all(axis=1)
    if is_bad_N.any():
        row = table.slice(int(is_bad_N.argmax()), 1).to_pylist()[0]
        raise InputError(
            f"{name}: pair {row['pair_id']}: its {row['response']} response has no finite score "
            "under every head; score again"
        )
    first = table.take(pa.array(range(0, table.num_rows, 2), pa.int64()))
    return HeadScores(
        pair_id_P=np.array(first["pair_id"].to_pylist(), dtype=np.object_),
        source_P=np.array(first["source"].to_pylist(), dtype=np.object_),
        subset_P=np.array(first["subset"].to_pylist(), dtype=np.object_),
        score_P2R=score_NR.reshape(-1, 2, len(head_ids)),
        head_ids=head_ids,
        mean_R=np.zeros(len(head_ids)) if mean_R is None else mean_R,
    )


def _paired(table: pa.Table, *, name: str) -> pa.Table:
    """The rows with each pair's two responses together, the chosen one first."""
    if _first_alone(table) is not None:
        keys = ("pair_id", "source", "response")  # "chosen" sorts before "rejected"
        table = table.sort_by([(key, "ascending") for key in keys])
    alone = _first_alone(table)
    if alone is not None:
        raise InputError(
            f"{name}: pair {alone}: expected exactly one row for its chosen and one for its "
            "rejected response; score again"
        )
    num_pairs = table.group_by(["source", "pair_id"]).aggregate([]).num_rows
    if 2 * num_pairs != table.num_rows:
        raise InputError(
            f"{name}: {table.num_rows} rows for {num_pairs} pairs: some are there more than once; "
            "read one scoring at a time"
        )
    return table


def _first_alone(table: pa.Table) -> str | None:
    """The first pair whose two rows do not stand together in the order of `RESPONSES`."""
    keys = [np.array(table[name].to_pylist(), dtype=np.object_) for name in ("source", "pair_id")]
    response_N = np.array(table["response"].to_pylist(), dtype=np.object_)
    num_whole = table.num_rows // 2 * 2
    is_right_P = (response_N[0:num_whole:2] == RESPONSES[0]) & (
        response_N[1:num_whole:2] == RESPONSES[1]
    )
    for key_N in keys:
        is_right_P &= key_N[0:num_whole:2] == key_N[1:num_whole:2]
    wrong = np.flatnonzero(~is_right_P.astype(np.bool_))
    if wrong.size:
        return str(keys[1][2 * wrong[0]])
    return str(keys[1][-1]) if num_whole != table.num_rows else None
