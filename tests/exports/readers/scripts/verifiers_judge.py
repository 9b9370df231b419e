"""Score traces by the reward server as a judge of verifiers, and by its rubric's loader.

Called with the paths of the request and of the answer. It imports `encore.rewards` from the
checkout that the request names.
"""

import asyncio
import json
import sys
from pathlib import Path

from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.task import TaskConfig
from verifiers.v1.errors import TaskError
from verifiers.v1.graph import MessageNode
from verifiers.v1.judges.rubric import load_criteria
from verifiers.v1.task import Task, TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask

MODULE = 'from encore.rewards.for_verifiers import RewardJudge\n\n__all__ = ["RewardJudge"]\n'


def trace_of(data, messages):
    """Return a finished trace of one branch, whose assistant messages a model wrote."""
    nodes = [
        MessageNode(
            parent=index - 1 if index else None,
            message=message,
            sampled=message["role"] == "assistant",
        )
        for index, message in enumerate(messages)
    ]
    task, agent = TraceTask(type="Task", data=data), AgentInfo(config=AgentConfig())
    return Trace(task=task, agent=agent, nodes=nodes)


def score(url, messages):
    """Return the trace's reward, rewards and metrics after `Task.score`, or the error's name."""
    data = TaskData(idx=0, prompt=messages[0]["content"])
    config = TaskConfig(judges=[{"id": "encore_judge", "url": url, "weight": 2.0}])
    trace = trace_of(data, messages)
    try:
        asyncio.run(Task(data, config).score(trace))
    except TaskError as error:
        return {"error": repr(error), "rewards": {k: v for k, v in trace.rewards.items() if v}}
    rewards = {name: reward.score for name, reward in trace.rewards.items()}
    return {"reward": trace.reward, "rewards": rewards, "metrics": trace.metrics}


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path("encore_judge.py").write_text(MODULE, encoding="utf-8")
    sys.path[:0] = [request["checkout"], str(Path.cwd())]
    Path("rubric.toml").write_text(request["rubric"], encoding="utf-8")
    answer = {
        "scored": [score(request["url"], messages) for messages in request["conversations"]],
        "criteria": [criterion.model_dump() for criterion in load_criteria(Path("rubric.toml"))],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
