"""Let OpenRLHF's executor fetch rewards for texts, over HTTP and by a local function.

Called with the paths of the request and of the answer. Packages that need CUDA are left out: the
executor's module is imported without its package's ``__init__``.
"""

import asyncio
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

FUNCTION = 'from encore.rewards.for_openrlhf import reward_func\n\n__all__ = ["reward_func"]\n'
NUM_PROMPT = 9


class TokenIds(list):
    """A list of token ids that looks like a tensor."""

    def tolist(self):
        return list(self)


class CharacterTokenizer:
    """Tokenizer with one token for each character."""

    def __call__(self, *, text, **_options):
        return {"input_ids": [TokenIds(map(ord, text))]}

    def decode(self, token_ids, **_options):
        return "".join(map(chr, token_ids))


class Engine:
    """Engine that completes each prompt to one given text."""

    def __init__(self, query):
        self.query = query

    async def generate(self, prompt_token_ids, _params, **_options):
        token_ids = [ord(character) for character in self.query[len(prompt_token_ids) :]]
        output = SimpleNamespace(token_ids=token_ids, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def import_executor():
    """Return OpenRLHF's executor of one turn."""
    folder = Path(importlib.util.find_spec("openrlhf").origin).parent
    for name, path in (("openrlhf", folder), ("openrlhf.utils", folder / "utils")):
        package = ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    return SingleTurnAgentExecutor


async def execute_all(executor, queries):
    """Return the executor's outputs of all texts, which are under way at the same time."""
    params = SimpleNamespace(max_tokens=10, logprobs=None)
    return await asyncio.gather(
        *(
            executor.execute(
                query[:NUM_PROMPT], None, params, 10_000, CharacterTokenizer(), Engine(query)
            )
            for query in queries
        )
    )


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, request["checkout"])
    os.environ["ENCORE_REWARD_URL"] = request["url"]
    Path("rewards.py").write_text(FUNCTION, encoding="utf-8")
    executor_class, answer = import_executor(), {}
    for name, endpoint in (("http", request["url"] + "/get_reward"), ("local", "rewards.py")):
        outputs = asyncio.run(execute_all(executor_class(endpoint), request["queries"]))
        fields = ("reward", "scores", "extra_logs")
        answer[name] = [{field: output[field] for field in fields} for output in outputs]
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
