"""Flow: pass only if rules agree with people above a floor, or no less than in an older run.

As a command, with or without a Prefect server: ``python -m flows.check STUDY --floor 0.8``. A flow
of one's own has it as a step: ``check_step(CheckConfig(study=…, floor=0.8))``.
"""

from __future__ import annotations

from prefect.client.schemas.objects import State
from prefect.states import Completed

from encore.analysis.check_options import CheckConfig
from encore.analysis.check_study import StudyCheck, check_study, raise_if_failed
from encore.core.number_text import counted
from flows.analyze import raise_if_incomplete
from flows.command import run_command
from flows.study_flow import study_flow
from tasks.artifacts import publish_check
from tasks.stage_task import Attempts, run_stage


def check_step(config: CheckConfig, attempts: Attempts = Attempts()) -> StudyCheck:
    """Check a study's rules as a task of the current flow run; its table is an artifact.

    Raises:
        CheckFailedError: A rule did not pass, or the record is stale.
        StudyIncompleteError: The run is not complete.
    """
    checked = run_stage("check", lambda: check_study(config), attempts=attempts)
    publish_check(checked, study=config.study)
    raise_if_incomplete(checked.ratings)
    raise_if_failed(checked)
    return checked


@study_flow("check", stage="check")
def check(config: CheckConfig, attempts: Attempts = Attempts()) -> State:
    """Check a study's rules under Prefect: the flow run fails if a rule does not pass.

    Without PREFECT_API_URL a temporary server is started for this run; with it, the run and its
    artifact (each rule with its bound) are kept on that server.

    Exit code 4: a rule did not pass, or the record is stale. 3: the run is not complete.

    Example: python -m flows.check study --floor 0.8
    """
    checked = check_step(config, attempts)
    num_rules = len(checked.rules or checked.drift)
    return Completed(message=f"{counted(num_rules, 'rule')} passed", data=checked.as_dict())


if __name__ == "__main__":
    run_command(check)
