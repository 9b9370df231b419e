"""Every template of infra/ is accepted by the tool that reads it, or by that tool's schema."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from encore.core.settings import Settings

INFRA = Path(__file__).resolve().parents[2] / "infra"
COMPOSE = INFRA / "compose.yaml"
KUBERNETES = INFRA / "kubernetes"
SCRIPTS = [
    INFRA / "slurm" / "rate-array.sbatch",
    INFRA / "slurm" / "serve-array.sbatch",
    *(INFRA.parent / ".ci" / name for name in ("packages", "run")),
]
#: Variables of processes that start each other.
SET_BY_US = {"ENCORE_STACK_PROCESS", "ENCORE_SERVER_KEY"}
PASSWORD = {"POSTGRES_PASSWORD": "only-for-this-test"}


def tool(name: str) -> str:
    """Return the path of a validator; skip the test if this machine has none."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def assert_accepts(*command: str | Path, **environ: str) -> None:
    """Run a command; it must exit with 0 and write nothing to standard error."""
    done = subprocess.run(
        [str(argument) for argument in command],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_compose_follows_the_compose_specification():
    assert_accepts(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE)


def compose() -> list[str]:
    """Return the command of Docker Compose 2, a plugin or a program; skip if there is none."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            version = subprocess.run(
                [*command, "version"], capture_output=True, text=True, check=False
            )
            if version.returncode == 0 and re.search(r"v?[2-9]\.\d+\.\d+", version.stdout):
                return command
    pytest.skip("Docker Compose 2 is not installed")


def test_docker_compose_reads_it_and_asks_for_a_password():
    command = [*compose(), "--file", str(COMPOSE), "--profile", "*", "config", "--quiet"]
    assert_accepts(*command, **PASSWORD)
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "POSTGRES_PASSWORD is missing a value: set it in infra/.env" in refused.stderr


def test_compose_publishes_on_loopback_and_shares_the_study():
    services = read_yaml(COMPOSE)["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("${ENCORE_BIND:-127.0.0.1}:") for port in ports)
    for name in ("coordinator", "engine-cpu", "engine-gpu"):
        assert "${ENCORE_STUDIES:-studies}:/studies" in services[name]["volumes"]
        assert services[name]["init"] is True
    assert all("healthcheck" in services[name] for name in services if name != "register")


def test_no_template_has_a_password_or_a_public_address():
    files = [path for path in INFRA.rglob("*") if path.is_file() and path.suffix[:3] != ".py"]
    assert len(files) > 10
    for path in files:
        text = path.read_text(encoding="utf-8")
        secrets = re.findall(r"\b[A-Z_]*(?:PASSWORD|SECRET|TOKEN|API_KEY)[:=](?!-) *(.*)", text)
        assert {secret[:21] for secret in secrets} <= {"", "${POSTGRES_PASSWORD:?"}, path
        assert not re.search(r"://[^/\s]+:[^/\s]+@", text), path
        # In a container, the servers must be reached by the other containers.
        public = re.findall(r"^.*(?:0\.0\.0\.0|\[::\]).*$", text, re.M)
        assert all(path == COMPOSE and line.endswith("# of the container") for line in public)


def explained_variables() -> set[str]:
    """Return the variables that infra/.env.example explains."""
    example = (INFRA / ".env.example").read_text(encoding="utf-8")
    return set(re.findall(r"^#?([A-Z][A-Z_]+)=", example, re.M))


def test_every_variable_of_compose_is_explained():
    lines = COMPOSE.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if line[:1] != "#")
    used = set(re.findall(r"\$\{([A-Z_]+)", text)) | set(re.findall(r"^ +([A-Z_]+):$", text, re.M))
    assert used
    assert used <= explained_variables()


def test_every_variable_of_the_project_is_explained():
    folders = [INFRA, *(INFRA.parent / name for name in ("encore", "tasks", "flows"))]
    code = "".join(path.read_text("utf-8") for folder in folders for path in folder.rglob("*.py"))
    used = set(re.findall(r"\"(ENCORE_[A-Z_]+)\"", code)) - SET_BY_US
    used |= {f"ENCORE_{name.upper()}" for name in Settings.model_fields}
    assert len(used) > 5
    assert used <= explained_variables()


def test_the_devcontainer_builds_a_stage_of_the_images():
    folder = INFRA.parent / ".devcontainer"
    build = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))["build"]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (folder / build["dockerfile"]).read_text(), re.M)
    assert build["target"] in stages
    assert (folder / build["context"]).resolve() == INFRA.parent


def test_the_workflows_follow_their_schema_and_pin_actions_by_hash():
    for path in (INFRA.parent / ".github" / "workflows").glob("*.yml"):
        assert_accepts(
            *(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", path)
        )
        actions = re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))
        assert [name for name in actions if not re.search(r"@[0-9a-f]{40}$", name)] == []


def test_the_images_pass_hadolint_and_their_base_is_one_image():
    assert_accepts(tool("hadolint"), INFRA / "Dockerfile")
    text = (INFRA / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^ARG BASE=python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}$", text, re.M)
    assert set(re.findall(r"^FROM (\S+) AS", text, re.M)) == {"${BASE}", "base", "pins"}


def test_what_renews_the_pins_has_the_right_schema():
    path = INFRA.parent / ".github" / "dependabot.yml"
    assert_accepts(tool("check-jsonschema"), "--builtin-schema", "vendor.dependabot", path)


@pytest.mark.parametrize("path", sorted(KUBERNETES.glob("*.yaml")), ids=lambda path: path.name)
def test_kubernetes_takes_the_manifests(path):
    import kubernetes_validate

    manifests = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert manifests
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.30", strict=True)


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_job_of_the_work_pool_is_one_that_kubernetes_takes(gpus):
    import kubernetes_validate
    from prefect.utilities.templating import apply_values, find_placeholders

    template = json.loads((KUBERNETES / "job-template.json").read_text(encoding="utf-8"))
    variables, jobs = template["variables"], template["job_configuration"]
    properties = variables["properties"]
    jsonschema.Draft202012Validator.check_schema(variables)
    defaults = {
        name: schema["default"] for name, schema in properties.items() if "default" in schema
    }
    jsonschema.validate(defaults, variables)
    assert {placeholder.name for placeholder in find_placeholders(jobs)} == set(properties)

    values = {**defaults, "name": "run", "gpus": gpus, "env": [{"name": "A", "value": "1"}]}
    manifest = apply_values(jobs, values)["job_manifest"]
    pod = manifest["spec"]["template"]["spec"]
    # Prefect's worker asks for these two in the pod, where Kubernetes does not know them.
    assert (pod.pop("parallelism"), pod.pop("completions")) == (1, 1)
    kubernetes_validate.validate(manifest, "1.30", strict=True)
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": gpus}
    assert pod["securityContext"]["runAsNonRoot"]
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"][:2]]
    assert claims == ["encore-studies", "encore-models"]


def test_the_indices_of_the_kubernetes_job_are_all_slices():
    job = read_yaml(KUBERNETES / "rate-job.yaml")["spec"]
    [container] = job["template"]["spec"]["containers"]
    assert container["args"][:2] == ["encore", "rate"]
    assert container["args"][-1] == f"--slice=$(JOB_COMPLETION_INDEX)/{job['completions']}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_pass_shellcheck(path):
    assert_accepts("bash", "-n", path)
    assert_accepts(tool("shellcheck"), path)
