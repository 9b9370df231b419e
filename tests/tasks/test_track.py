"""What of a training is in a real MLflow store: after one process, after crashes, after outages."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from tasks.track import MlflowStore, TrackingUnavailableError, connect
from tasks.track_training import MlflowReporter, tracked_training
from tests.tasks.mlflow_store import Logged
from tests.tasks.training_story import HEADS, Killed, Outage, Story, evaluation_record, step_record

ALL_STEPS = list(range(1, 11))
#: A story evaluates with every fourth step's checkpoint and at the end.
EVALUATED = [4, 8, 10]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "out")


def reporter_of(uri: str, *, log_every: int = 3) -> MlflowReporter:
    return MlflowReporter(connect(uri, experiment="encore"), {}, log_every=log_every)


def away_while(reporter: MlflowReporter) -> Outage:
    """The reporter's client, which can be sent away."""
    store: MlflowStore = reporter._store
    store._client = Outage(store._client, MlflowException("API request failed: refused"))
    return store._client


def assert_all_is_logged(uri: str) -> None:
    logged = Logged(uri)
    assert logged.run().info.status == "FINISHED"
    for metric in ("train/loss", "train/learning_rate", "train/tokens_per_second"):
        assert logged.steps(metric) == ALL_STEPS, metric
    for metric in ("eval/loss", "eval/r2/kindness", "eval/accuracy_half/privacy"):
        assert logged.steps(metric) == EVALUATED, metric
    models = logged.models()
    assert sorted(models) == ["model", "step-00000004", "step-00000008"]
    for model in models.values():
        step = int(model.tags["encore.step"])
        values = {metric.key: (metric.step, metric.value) for metric in model.metrics}
        assert len(values) == len(model.metrics), "a metric of a model is there twice"
        assert values["eval/loss"] == (step, 2 / step)
        assert values["eval/r2/kindness"] == (step, 0.5)
        assert str(model.status) == "READY"
    outputs = logged.run().outputs.model_outputs
    assert sorted(output.step for output in outputs) == [4, 8, 10]
    names = {file.path for file in logged.client.list_artifacts(logged.run().info.run_id)}
    assert {"training.json", "log.jsonl", "evaluations.jsonl"} <= names


def test_a_training_is_one_run_with_its_metrics_models_and_files(store_uri, story):
    with tracked_training(store_uri, log_every=3) as reporter:
        story.tell(reporter)
    assert_all_is_logged(store_uri)


def test_what_a_run_is_made_of_are_its_parameters_and_digests_are_tags(store_uri, story):
    with tracked_training(store_uri, about={"ratings.judge": "tiny"}) as reporter:
        story.tell(reporter)
    run = Logged(store_uri).run()
    expected = {
        "config.objective": "multi-head",
        "config.learning_rate": "2e-05",
        "config.adam_betas": "[0.9, 0.999]",
        "backbone_identity.template_sha256": "7e" * 32,
        "data_sha256": "da" * 32,
        "versions.torch": "2.13.0",
        "plan.num_parameters": "100",
        "ratings.judge": "tiny",
        "run_key": story.run.key,
    }
    assert run.data.params.items() >= expected.items()
    assert run.data.tags["encore.run_key"] == story.run.key
    assert run.data.tags["encore.data_sha256"] == "da" * 32
    assert run.data.tags["encore.backbone_identity.template_sha256"] == "7e" * 32
    assert run.data.tags["mlflow.note.content"] == "two pairs without ratings"


def test_what_was_not_measured_is_not_logged_as_a_number(store_uri, story):
    with tracked_training(store_uri) as reporter:
        story.tell(reporter)
    metrics = Logged(store_uri).run().data.metrics
    assert "train/mfu" not in metrics
    assert "eval/r2/privacy" not in metrics
    assert metrics["eval/accuracy_half/privacy"] == 0.5


def test_the_machine_is_measured_along_with_the_steps(store_uri, story):
    with tracked_training(store_uri) as reporter:
        story.tell(reporter)
    logged = Logged(store_uri)
    assert 0 <= logged.run().data.metrics["system/cpu_utilization_percentage"] <= 100
    assert logged.run().data.metrics["system/system_memory_usage_megabytes"] > 0
    # A sample every ten seconds, and these ten steps took less: one, with the first step.
    assert logged.steps("system/cpu_utilization_percentage") == [1]


def test_metrics_of_k_steps_go_in_one_call_and_so_does_the_rest(store_uri, tmp_path):
    story = Story(tmp_path / "out", num_steps=10, every=99)
    reporter = reporter_of(store_uri, log_every=4)
    client = away_while(reporter)
    story.tell(reporter)
    # Parameters and tags; steps 1 to 4; 5 to 8; then 9, 10, the evaluation and the final model.
    assert client.calls.count("log_batch") == 4
    assert client.calls.count("log_metric") == 0


@pytest.mark.parametrize("dies_after", [1, 3, 4, 5, 8, 9])
def test_a_killed_training_goes_on_in_the_same_run_without_a_gap_or_a_double(
    store_uri, story, dies_after
):
    story.tell(reporter_of(store_uri), dies_after=dies_after)
    assert Logged(store_uri).run().info.status == "RUNNING"  # nobody was left to say otherwise
    story.tell(reporter_of(store_uri))
    assert_all_is_logged(store_uri)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_ten_random_deaths_leave_no_gap_and_no_double(store_uri, story, seed):
    chance = random.Random(seed)
    for _ in range(10):
        story.tell(reporter_of(store_uri, log_every=2), dies_after=chance.randint(1, 9))
    story.tell(reporter_of(store_uri))
    assert_all_is_logged(store_uri)


def test_steps_before_the_checkpoint_that_never_reached_the_store_come_from_the_log(
    store_uri, story
):
    """Seven steps are buffered when the process dies; four of them will not be trained again."""
    reporter = reporter_of(store_uri, log_every=100)
    client = away_while(reporter)
    run_started = reporter.started

    def started_then_away(plan):
        run_started(plan)
        client.is_away = True

    reporter.started = started_then_away
    story.tell(reporter, dies_after=7)
    assert Logged(store_uri).steps("train/loss") == []

    story.tell(reporter_of(store_uri))
    assert_all_is_logged(store_uri)


def test_a_store_that_is_away_for_a_while_gets_everything_in_the_end(store_uri, story, caplog):
    reporter = reporter_of(store_uri, log_every=1)
    client = away_while(reporter)
    now = 0.0
    reporter._outbox.clock = lambda: now
    saved, stepped = reporter.saved, reporter.stepped

    def stepped_in_an_outage(record):
        nonlocal now
        now += 10.0
        client.is_away = 3 <= record.step <= 8
        stepped(record)

    reporter.stepped, reporter.saved = stepped_in_an_outage, saved
    with caplog.at_level(logging.WARNING, logger="tasks"):
        story.tell(reporter)

    assert_all_is_logged(store_uri)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("tasks")]
    assert len(said) == 2
    assert "does not take what is logged (API request failed: refused)" in said[0]
    assert "training goes on" in said[0]
    assert "answers again" in said[1]


def test_a_store_that_stays_away_is_said_and_the_same_command_logs_the_rest(
    store_uri, story, caplog
):
    reporter = reporter_of(store_uri)
    reporter._pause = lambda seconds: None
    client = away_while(reporter)
    stepped = reporter.stepped

    def stepped_once(record):
        client.is_away = record.step > 3
        stepped(record)

    reporter.stepped = stepped_once
    with caplog.at_level(logging.WARNING, logger="tasks"):
        story.tell(reporter)
    assert reporter.tracked.num_waiting > 0
    assert "the same command logs what is missing" in caplog.text
    assert Logged(store_uri).steps("train/loss") == [1, 2, 3]

    # A finished training only says that it is finished.
    reporter_of(store_uri).finished(story.result(is_new=False))
    assert_all_is_logged(store_uri)


def test_an_answer_that_got_lost_is_no_second_entry(store_uri, story):
    """The store takes every call and then the connection breaks, once for each kind of call."""
    reporter = reporter_of(store_uri, log_every=1)
    store: MlflowStore = reporter._store
    client = store._client
    broken: set[str] = set()

    class LosesAnswers:
        def __getattr__(self, name):
            method = getattr(client, name)

            def call(*args, **kwargs):
                answer = method(*args, **kwargs)
                writes = name.startswith(("create_logged", "log_", "finalize", "set_"))
                if writes and name not in broken and store._run_id and len(broken) < 9:
                    broken.add(name)
                    raise MlflowException("connection reset by peer")
                return answer

            return call

    run_started = reporter.started

    def started(plan):
        run_started(plan)
        store._client = LosesAnswers()

    reporter.started = started
    now = 0.0

    def clock():
        nonlocal now
        now += 10.0
        return now

    reporter._outbox.clock = clock
    reporter._pause = lambda seconds: None
    story.tell(reporter)

    assert broken >= {"log_batch", "create_logged_model", "log_outputs", "finalize_logged_model"}
    assert_all_is_logged(store_uri)


def test_a_finished_training_that_was_not_tracked_is_logged_from_its_files(store_uri, story):
    class Nobody(MlflowReporter):
        def __init__(self):
            pass

        started = stepped = evaluated = saved = finished = lambda self, record: None

    story.tell(Nobody())
    with tracked_training(store_uri) as reporter:
        reporter.finished(story.result(is_new=False))
    assert_all_is_logged(store_uri)


def test_a_finished_run_stays_as_it_is_when_its_command_is_repeated(store_uri, story):
    with tracked_training(store_uri) as reporter:
        story.tell(reporter)
    before = Logged(store_uri).run()
    with tracked_training(store_uri) as reporter:
        reporter.finished(story.result(is_new=False))
    after = Logged(store_uri).run()
    assert after.info.end_time == before.info.end_time
    assert after.info.status == "FINISHED"
    assert_all_is_logged(store_uri)


def test_training_anew_what_was_finished_and_deleted_is_another_run(store_uri, story, tmp_path):
    with tracked_training(store_uri) as reporter:
        story.tell(reporter)
    with tracked_training(store_uri) as reporter:
        Story(tmp_path / "again").tell(reporter)
    runs = Logged(store_uri).runs()
    assert len(runs) == 2
    assert {run.info.status for run in runs} == {"FINISHED"}


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("a mistake"), "FAILED"), (KeyboardInterrupt(), "KILLED"), (Killed(), "KILLED")],
)
def test_a_training_that_ends_early_says_so_and_its_last_steps_are_logged(
    store_uri, story, error, status
):
    with pytest.raises(type(error)), tracked_training(store_uri, log_every=100) as reporter:
        reporter.started(story._plan(0))
        reporter.stepped(step_record(1))
        reporter.evaluated(evaluation_record(1))
        raise error
    logged = Logged(store_uri)
    assert logged.run().info.status == status
    assert logged.steps("train/loss") == [1]
    assert logged.steps("eval/loss") == [1]

    story.tell(reporter_of(store_uri))
    assert Logged(store_uri).run().info.status == "FINISHED"
    assert Logged(store_uri).steps("train/loss") == ALL_STEPS


def test_checkpoints_that_are_deleted_from_the_disk_keep_their_metrics_and_say_so(
    store_uri, tmp_path
):
    story = Story(tmp_path / "out", num_steps=8, every=2)
    with tracked_training(store_uri) as reporter:
        story.tell(reporter)
    on_disk = {
        name: model.tags["encore.on_disk"] for name, model in Logged(store_uri).models().items()
    }
    assert on_disk == {
        "step-00000002": "no",
        "step-00000004": "no",
        "step-00000006": "yes",
        "step-00000008": "yes",
        "model": "yes",
    }
    model = Logged(store_uri).models()["step-00000002"]
    assert model.tags["encore.path"] == str(story.run.checkpoints_dir / "step-00000002")


def test_nothing_is_written_where_the_process_happens_to_run(
    store_uri, story, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with tracked_training(store_uri) as reporter:
        story.tell(reporter)
    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "mlflow-artifacts").is_dir()


def test_a_run_has_a_place_and_a_command_to_look_at_it(store_uri, story):
    with tracked_training(store_uri) as reporter:
        story.tell(reporter)
    tracked = reporter.tracked
    assert tracked.run_id == Logged(store_uri).run().info.run_id
    assert tracked.page is None
    assert "--host 127.0.0.1" in tracked.command
    assert tracked.num_waiting == 0


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:hunter2@127.0.0.1:9",
        "postgresql://me:hunter2@127.0.0.1:9/mlflow",
        "nonsense://me:hunter2@host",
    ],
)
def test_a_store_that_does_not_answer_at_the_start_is_one_line_without_a_password(uri):
    with pytest.raises(TrackingUnavailableError) as caught:
        connect(uri, experiment="encore")
    message = str(caught.value)
    assert message.startswith("MLflow ")
    assert "me:***@" in message
    assert "hunter2" not in message
    assert "\n" not in message
    assert "trained nothing" in message


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_text("something else entirely, long enough for a header" * 10)
    with pytest.raises(TrackingUnavailableError, match="file is not a database"):
        connect(f"sqlite:///{path}", experiment="encore")


def test_a_deleted_experiment_is_named(store_uri):
    connect(store_uri, experiment="encore")
    logged = Logged(store_uri)
    logged.client.delete_experiment(logged.experiment.experiment_id)
    with pytest.raises(TrackingUnavailableError, match="experiment 'encore' was deleted"):
        connect(store_uri, experiment="encore")


def test_the_log_in_the_store_is_the_run_s_own(store_uri, story, tmp_path):
    with tracked_training(store_uri) as reporter:
        story.tell(reporter)
    logged = Logged(store_uri)
    copy = logged.client.download_artifacts(logged.run().info.run_id, "log.jsonl", str(tmp_path))
    lines = Path(copy).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == ALL_STEPS
    assert {f"eval/accuracy_half/{head}" for head in HEADS} <= logged.run().data.metrics.keys()
