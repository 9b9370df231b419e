"""Ask a judge in tests: prompts of the paper's form, and the replies to texts."""

from __future__ import annotations

from collections.abc import Sequence

from encore.data.rule_sets import load_rule_set
from encore.judges.base import Decoding, Judge, ProgressHook, Reply
from encore.rating.prompts import RatingPrompt


def rating_prompts(*, num_conversations: int, prompt: RatingPrompt | None = None) -> list[str]:
    """Return the prompts of each conversation under each of the ten rules.

    Args:
        num_conversations: Number of conversations.
        prompt: Layout and scale of the prompts; None takes the paper's.
    """
    prompt = prompt or RatingPrompt()
    return [
        "".join(
            prompt.parts(f"Human: Why {index}?\n\nAssistant: {'So ' * index}", rating_rule=text)
        )
        for index in range(num_conversations)
        for text in [rule.rating_rule for rule in load_rule_set("encore-10").rules]
    ]


def replies_to(
    judge: Judge,
    texts: Sequence[str],
    decoding: Decoding,
    *,
    on_progress: ProgressHook = lambda _: None,
    sessions: Sequence[str] = (),
) -> list[Reply]:
    """Check a decoding, and return the judge's replies to texts."""
    judge.check(decoding)
    prompts = judge.tokenizer.encode(texts) if judge.tokenizer else texts
    return judge.reply(prompts, decoding=decoding, on_progress=on_progress, sessions=sessions)


def interrupt_after_5(num_done: int) -> None:
    """Interrupt a judge after its fifth reply, as Ctrl-C does."""
    if num_done >= 5:
        raise KeyboardInterrupt
