"""What the reward server lets a client ask for, and how long it waits."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

#: Tokens that may wait, in batches of the largest size.
_QUEUED_BATCHES = 64
#: Bodies that may be held at one time, in bodies of the largest size.
_HELD_BODIES = 16


class ServerConfig(BaseModel):
    """Limits of a reward server; the defaults suit a server on the training machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_batch_tokens: int = Field(
        default=8_192,
        ge=1,
        description="Tokens of all clients that are computed together; a longer text goes alone.",
    )
    max_queue_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens that may wait before clients are asked to come back; default: 64 full "
        "batches.",
    )
    max_request_bytes: int = Field(
        default=8 << 20, ge=1, description="Of a request's body; a larger one is refused."
    )
    max_queries: int = Field(default=1024, ge=1, description="Texts in one request.")
    head_seconds: float = Field(
        default=10.0, gt=0, description="Time for a request's first lines to arrive."
    )
    body_seconds: float = Field(default=10.0, gt=0, description="Time for its body to arrive.")
    answer_seconds: float = Field(
        default=60.0, gt=0, description="Time for a client to take an answer that is ready."
    )
    idle_seconds: int = Field(
        default=30, ge=1, description="How long a connection stays open between two requests."
    )
    stop_seconds: int = Field(
        default=25, ge=1, description="Time to answer what is under way when the server stops."
    )

    @property
    def queue_tokens(self) -> int:
        """The limit of the queue."""
        return self.max_queue_tokens or _QUEUED_BATCHES * self.max_batch_tokens

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies that may be in memory at one time."""
        return _HELD_BODIES * self.max_request_bytes
