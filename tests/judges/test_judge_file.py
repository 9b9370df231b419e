"""A judge's options in a file: what they become, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from encore.core.errors import JudgeUnavailableError
from encore.judges.judge_options import JudgeConfig
from encore.judges.server_options import ServerOptions
from encore.recipes.recipe import RecipeRating
from tests.golden.command_line import encore


def judge_file(folder: Path, text: str) -> Path:
    path = folder / "judge.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_the_judge_and_options_beside_it_count(tmp_path: Path) -> None:
    text = 'model = "./here"\nrevision = "v1"\nengine_args = {tensor_parallel_size = 2}\n'
    path = judge_file(tmp_path, text)
    expected = JudgeConfig(
        model=str(tmp_path / "here"), revision="v2", engine_args={"tensor_parallel_size": 2}
    )
    assert JudgeConfig(model=str(path), revision="v2") == expected
    assert JudgeConfig.model_validate(expected.model_dump()) == expected


def test_a_judge_over_http_comes_whole_from_a_file(tmp_path: Path) -> None:
    text = (
        'model = "org/judge"\nbackend = "http"\nbase_url = "http://127.0.0.1:1/v1"\n'
        'request_fields = {top_p = 0.9}\nheaders = {X-Key = "ENV:KEY"}\n'
    )
    path = str(judge_file(tmp_path, text))
    config = JudgeConfig(model=path)
    assert (config.model, config.backend) == ("org/judge", "http")
    assert config.request_fields == {"top_p": 0.9}
    server = config.server(ServerOptions(concurrency=8))
    assert (server.base_url, server.concurrency) == ("http://127.0.0.1:1/v1", 8)
    assert server.headers == {"X-Key": "ENV:KEY"}
    # A recipe has them in one table, and hands them on as one.
    for judge in ({"model": path}, {"model": path, "base_url": "http://127.0.0.1:2/v1"}):
        rating = RecipeRating.model_validate({"judge": judge, "concurrency": 8})
        dumped = RecipeRating.model_validate(rating.set_options())
        expected = server.model_copy(update={"base_url": judge.get("base_url", server.base_url)})
        assert dumped.judge.server(dumped) == rating.judge.server(rating) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "correct the TOML"),
        ('revision = "v1"', "it names no model"),
        ('modle = "x"', "'modle' is no option of a judge; did you mean model"),
        ('model = "x"\nconcurrency = 0', "concurrency: Input should be greater than or equal to 1"),
        ('model = "x"\nheaders = "sk-secret"', "headers: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_no_secret(
    tmp_path: Path, text: str, message: str
) -> None:
    path = judge_file(tmp_path, text)
    finished = encore("plan", "rate", tmp_path, "--judge", path)
    assert finished.code == 1
    assert message in finished.error
    assert str(path) in finished.error
    assert "sk-secret" not in finished.error


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        JudgeUnavailableError, match=r"none.toml': No such file or directory; expected a TOML"
    ):
        JudgeConfig(model=str(tmp_path / "none.toml"))
