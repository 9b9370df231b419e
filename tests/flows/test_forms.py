"""The forms that Prefect makes of all deployments: fields described, numbers bounded, choices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import yaml

from encore.benchmarks.benchmark_options import FITTED_HEADS
from encore.recipes.recipe import RECIPE_NAMES
from encore.weighting.schemes import SCHEMES
from infra.prefect_setup import ROOT

pytestmark = pytest.mark.services

_DEPLOYMENTS = yaml.safe_load((ROOT / "infra/prefect.yaml").read_text(encoding="utf-8"))
ENTRYPOINTS = sorted({deployment["entrypoint"] for deployment in _DEPLOYMENTS["deployments"]})
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
CLOSED = {
    "PipelineConfig.prefer": ("safer", "better"),
    "JudgeConfig.backend": ("vllm", "transformers", "http"),
    "RatingConfig.overlong": ("set-aside", "truncate-left"),
    "Weighing.scheme": SCHEMES,
    "RowsConfig.schemes": (*SCHEMES, FITTED_HEADS),
    "TrainingRunConfig.method": ("full", "lora", "probe"),
    "ScoringConfig.dtype": ("auto", "float32", "bfloat16"),
    "BenchmarkConfig.paper": ("main", "fsfairx", "none"),
}


def schema_of(entrypoint: str) -> dict[str, Any]:
    module, _, name = entrypoint.rpartition(".")
    return dict(getattr(import_module(module), name).parameters.model_dump())


def fields_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from schema["properties"].items()
    for model, definition in schema["definitions"].items():
        for name, field in definition.get("properties", {}).items():
            yield f"{model}.{name}", field


def parts_of(field: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a field, its alternatives and its items, at every depth."""
    yield field
    inner = [*field.get("anyOf", ()), *field.get("prefixItems", ())]
    for part in inner + ([field["items"]] if isinstance(field.get("items"), dict) else []):
        yield from parts_of(part)


def test_registering_deployments_imports_nothing_that_only_work_needs() -> None:
    """Every worker imports a flow anew for each run, and `make up` imports them all."""
    modules = ", ".join({entrypoint.rpartition(".")[0] for entrypoint in ENTRYPOINTS})
    heavy = {"torch", "vllm", "mlflow", "matplotlib"}
    code = f"import sys, {modules}; print(*{heavy} & {{*sys.modules}})"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "\n"


@pytest.mark.parametrize("entrypoint", ENTRYPOINTS)
def test_every_field_of_a_form_is_described_and_every_number_bounded(entrypoint: str) -> None:
    schema = schema_of(entrypoint)
    for name, field in fields_of(schema):
        models = [part["$ref"].rpartition("/")[2] for part in parts_of(field) if "$ref" in part]
        definitions = [field, *(schema["definitions"][model] for model in models)]
        assert any(definition.get("title") for definition in definitions), name
        assert any(definition.get("description") for definition in definitions), name
        for part in parts_of(field):
            is_number = part.get("type") in ("integer", "number")
            assert not is_number or _BOUNDS & part.keys(), name


@pytest.mark.parametrize(
    ("preset", "filled_in"),
    [
        ("encore-demo", {}),
        ("encore-paper", {}),
        ("encore-pilot", {"sources": ["pairs.jsonl"], "judge": "a-judge"}),
    ],
)
def test_a_preset_needs_no_more_than_its_description_says(preset: str, filled_in: Any) -> None:
    [deployment] = [entry for entry in _DEPLOYMENTS["deployments"] if entry["name"] == preset]
    parameters = deployment["parameters"] | filled_in
    module, _, name = deployment["entrypoint"].rpartition(".")
    flow = getattr(import_module(module), name)
    assert parameters.keys() <= flow.validate_parameters(parameters).keys()


def test_closed_choices_are_offered_and_shipped_names_are_examples() -> None:
    schemas = {entrypoint: schema_of(entrypoint) for entrypoint in ENTRYPOINTS}
    fields = {name: field for schema in schemas.values() for name, field in fields_of(schema)}
    for name, choices in CLOSED.items():
        offered = [part["enum"] for part in parts_of(fields[name]) if "enum" in part]
        assert offered == [[*choices]], name
    recipe = schemas["flows.recipes.run_recipe"]["properties"]["recipe"]
    assert recipe["anyOf"][0]["enum"] == [*RECIPE_NAMES]
    assert fields["RatingConfig.rules"]["examples"][:2] == ["encore-10", "encore-20"]
    assert "rewardbench-safety" in fields["PairsConfig.benchmark"]["examples"]
    engines = fields["RatingRunOptions.engines"]["anyOf"]
    assert engines == [
        {"maximum": 1024, "minimum": 1, "type": "integer"},
        {"const": "auto", "type": "string"},
    ]
