"""Score labelled responses under every head, shard by shard, and keep the scores on disk.

Forward passes over real tokens bound the speed: nothing is padded.

Suffixes: N responses, R heads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from encore.core.errors import InputError
from encore.core.reporting import Reporter
from encore.core.versions import package_versions
from encore.model.open_model import OpenedModel
from encore.model.score_sequences import score_sequences
from encore.people.labelled_responses import LabelledResponse
from encore.runs.identity import run_identity, run_key_of
from encore.runs.manifest import RunManifest, Shard
from encore.runs.shard_files import ShardTable
from encore.runs.worker import Job, ReportRows, raise_for_failed_shards, work_through
from encore.scoring.scoring_run import refuse_infinite

#: Responses in a file: what a killed call loses at most.
SHARD_SIZE = 256
_ID_COLUMN = "response_id"


class LabelledScoreManifest(RunManifest):
    """Manifest of the scores of labelled responses. Labels and weights are not part of its key.

    Attributes:
        score_key: Key of the scores: of the model, its heads, the texts and the plan.
        model: Name of the model, for people.
    """

    FILE: ClassVar[str] = "guard.json"
    KEY_FIELD: ClassVar[str] = "score_key"
    COMMAND: ClassVar[str] = "encore guard"
    DOING: ClassVar[str] = "scoring labelled responses"
    DONE: ClassVar[str] = "scored"
    UNIT: ClassVar[str] = "responses"

    score_key: str
    model: str

    @property
    def title(self) -> str:
        """Return the model's name, for a list of runs."""
        return f"model {self.model}"

    @property
    def rows_per_pair(self) -> int:
        """Return 1: the plan counts responses."""
        return 1


class LabelledScores(NamedTuple):
    """Scores of N labelled responses.

    Attributes:
        score_NR: Centred score of each response under each head, float32.
        num_cut: Number of responses whose conversation was too long and lost its oldest tokens.
        folder: Folder of the scores.
    """

    score_NR: NDArray[np.float32]
    num_cut: int
    folder: Path


def score_labelled(
    opened: OpenedModel, responses: Sequence[LabelledResponse], *, out: Path, reporter: Reporter
) -> LabelledScores:
    """Return every head's score of every response; compute only the shards that are missing.

    Args:
        opened: The reward model.
        responses: The responses, in order.
        out: Folder of the scores. Those of this model and these texts are in ``out/KEY``.
        reporter: Receiver of progress events.

    Raises:
        InputError: A head is called like a column, or the folder holds something else.
        StudyIncompleteError: A shard failed; a score is not finite, or the device lacks memory.
        KeyboardInterrupt: The user interrupted. Finished shards are kept.
    """
    head_ids = opened.model.head_ids
    if _ID_COLUMN in head_ids:
        raise InputError(f"head {_ID_COLUMN!r}: a column of the scores already has this name")
    id_N = [_response_id(response) for response in responses]
    manifest = _manifest(opened, id_N)

    def compute(shard: Shard, _report_rows: ReportRows) -> ShardTable:
        block, block_ids = responses[shard.start : shard.stop], id_N[shard.start : shard.stop]
        encoded = [opened.tokenizer.encode(part.prompt, part.response) for part in block]
        score_NR = score_sequences(
            opened.model,
            [part.token_ids for part in encoded],
            pad_token_id=opened.tokenizer.pad_token_id,
        )
        refuse_infinite(score_NR, head_ids, name_of_row=lambda row: f"response {block_ids[row]}")
        columns = dict(zip(head_ids, score_NR.T, strict=True))
        num_cut = sum(part.num_cut > 0 for part in encoded)
        return ShardTable(
            table=pa.table({_ID_COLUMN: block_ids, **columns}), footer={"num_cut": num_cut}
        )

    job = Job(run_dir=out / manifest.score_key, manifest=manifest, compute=compute)
    report = work_through(job, reporter=reporter)
    raise_for_failed_shards(job.run_dir, report.failures, num_shards=len(manifest.shards))
    paths = [done.path for done in sorted(report.outcomes, key=lambda done: done.index)]
    table = pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths])
    score_NR = np.stack([table[head_id].to_numpy() for head_id in head_ids], axis=1)
    return LabelledScores(score_NR, num_cut=report.total("num_cut"), folder=job.run_dir)


def _manifest(opened: OpenedModel, id_N: Sequence[str]) -> LabelledScoreManifest:
    """Return the manifest of the scores of a model on responses with these ids."""
    identity = run_identity(
        None,
        order="file",
        num_pairs=len(id_N),
        shard_size=SHARD_SIZE,
        model_digest=opened.digest,
        head_ids=list(opened.model.head_ids),
        data_sha256=hashlib.sha256("".join(id_N).encode()).hexdigest(),
    )
    return LabelledScoreManifest(
        score_key=run_key_of(identity),
        identity=identity,
        model=opened.name,
        synthetic=tuple(f"model {part}" for part in opened.metadata.get("synthetic", ())),
        versions=package_versions(),
    )


def _response_id(response: LabelledResponse) -> str:
    """Return 32 hex digits of the SHA-256 of a conversation, without its label."""
    messages = [[message.role, message.content] for message in response.prompt]
    content = json.dumps([messages, response.response], separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:32]
