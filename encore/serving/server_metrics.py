"""Counters of the reward server for Prometheus, and the scores of its rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from encore.serving.batch_queue import BatchQueue
from encore.serving.held_out_scale import HeldOutScale

#: Number of latest texts whose scores the means and deviations describe.
_NUM_LATEST = 1000


class ServerMetrics:
    """Everything that `GET /metrics` says.

    Args:
        queue: Queue whose length is shown.
        head_ids: Ids of the rules.
        mean_R: Mean of each rule's ratings in the model's training; zeros if it is not known.
        scale: Scale of the scores of the training's held-out responses.
    """

    def __init__(
        self,
        queue: BatchQueue,
        *,
        head_ids: Sequence[str],
        mean_R: NDArray[np.float64],
        scale: HeldOutScale,
    ) -> None:
        self._head_ids = head_ids
        self._scale = scale
        self._mean_R = mean_R
        self._latest: deque[NDArray[np.float64]] = deque(maxlen=_NUM_LATEST)
        self._registry = CollectorRegistry()
        registered: dict[str, Any] = {"registry": self._registry}
        of_path = {"labelnames": ["path"]} | registered
        self.requests = Counter(
            "encore_requests",
            "Requests answered, by path and status.",
            ["path", "status"],
            **registered,
        )
        self.errors = Counter(
            "encore_errors",
            "Requests and texts refused or failed, by kind.",
            ["kind"],
            **registered,
        )
        self.seconds = Histogram(
            "encore_request_seconds",
            "Seconds from a request's arrival to its answer, by path.",
            **of_path,
        )
        self.texts = Counter("encore_texts", "Texts scored.", **registered)
        self.tokens = Counter("encore_tokens", "Tokens scored.", **registered)
        self.batch_seconds = Histogram(
            "encore_batch_seconds", "Seconds that the model takes for a batch.", **registered
        )
        queued_texts = Gauge("encore_queued_texts", "Texts waiting in the queue.", **registered)
        queued_texts.set_function(lambda: len(queue.texts))
        queued_tokens = Gauge("encore_queued_tokens", "Tokens waiting in the queue.", **registered)
        queued_tokens.set_function(lambda: queue.num_tokens)
        of_rule = f"of a rule's scores over the latest {_NUM_LATEST} texts, on the ratings' scale."
        self._mean = Gauge("encore_rule_score_mean", f"Mean {of_rule}", ["rule"], **registered)
        self._sd = Gauge(
            "encore_rule_score_sd", f"Standard deviation {of_rule}", ["rule"], **registered
        )
        self._drift = Gauge(
            "encore_rule_score_drift",
            "That mean minus the mean of the rule's ratings in the study that the model learnt.",
            ["rule"],
            **registered,
        )
        self._drift_sd = Gauge(
            "encore_rule_score_drift_sd",
            "That mean minus the mean over the training's held-out responses, in their sd.",
            ["rule"],
            **registered,
        )

    def add_scores(self, score_NR: NDArray[np.float64]) -> None:
        """Add the centred scores of some texts."""
        self._latest.extend(score_NR)

    def as_text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        if self._latest:
            score_NR = np.array(self._latest)
            for head, (rule, sd) in enumerate(
                zip(self._head_ids, score_NR.std(axis=0), strict=True)
            ):
                drift = score_NR[:, head].mean()
                self._mean.labels(rule).set(drift + self._mean_R[head])
                self._sd.labels(rule).set(sd)
                if self._mean_R.any():  # a model of others does not say its study's mean
                    self._drift.labels(rule).set(drift)
            for rule, drift_N in self._scale.deviations(score_NR).items():
                self._drift_sd.labels(rule).set(drift_N.mean())
        return generate_latest(self._registry)
