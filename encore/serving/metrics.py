"""What the server counts, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from encore.serving.batching import BatchRecord

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_NO_PATH = "none"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServerMetrics:
    """One server's counters, in a registry of its own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self._requests = Counter(
            "encore_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "encore_request_seconds",
            "From a request's first line to its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._texts = Counter("encore_texts", "Texts scored.", registry=registry)
        self._tokens = Counter("encore_tokens", "Tokens scored.", registry=registry)
        self._cut = Counter(
            "encore_cut_texts", "Texts accepted that lost their oldest tokens.", registry=registry
        )
        self._batch_texts = Histogram(
            "encore_batch_texts", "Texts computed together.", buckets=_TEXTS, registry=registry
        )
        self._batch_seconds = Histogram(
            "encore_batch_seconds", "Time of a batch.", buckets=_SECONDS, registry=registry
        )

    def watch_queue(self, *, num_texts: Callable[[], int], num_tokens: Callable[[], int]) -> None:
        """Show what waits, as it is when somebody asks."""
        for name, text, value in (
            ("encore_queued_texts", "Texts that wait.", num_texts),
            ("encore_queued_tokens", "Tokens that wait.", num_tokens),
        ):
            Gauge(name, text, registry=self._registry).set_function(value)

    def answered(self, *, path: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def refused(self, *, status: int) -> None:
        """Count an answer to what never became a request; it has no path and took no time."""
        self._requests.labels(_NO_PATH, str(status)).inc()

    def cut(self, num_texts: int) -> None:
        """Count texts that were too long."""
        self._cut.inc(num_texts)

    def computed(self, batch: BatchRecord) -> None:
        """Count one batch."""
        self._texts.inc(batch.num_texts)
        self._tokens.inc(batch.num_tokens)
        self._batch_texts.observe(batch.num_texts)
        self._batch_seconds.observe(batch.seconds)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)
