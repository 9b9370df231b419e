# The common commands. Each one makes sure that the environment in .venv is ready; only the first installs.

PYTHON ?= python3
BIN := .venv/bin
ENGINES ?= 1
PREFECT_PORT ?= 4200
MLFLOW_PORT ?= 5000

export DO_NOT_TRACK = 1
export HF_HUB_DISABLE_TELEMETRY = 1
export MLFLOW_DISABLE_TELEMETRY = true
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export VLLM_NO_USAGE_STATS = 1
# Images of Python often forbid compiled files; every process would compile torch, Prefect and vLLM anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup packages demo up down test test-services test-full lint types imports check perf hashes docs clean

help: ## List the commands (this text)
	@echo "ENCORE: audit safety rules, compose reward models. Start with: make demo"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  The first call installs 2.6 GB into .venv (the tests 0.6 more), a minute with a fast line; later ones install nothing."
	@echo "  PYTHON=python3.12 make demo   another interpreter (3.11 or later) for a new .venv"
	@echo "  make test ARGS='-k weights'   arguments for pytest; the same for demo"
	@echo "  $(BIN)/encore --help   every command; $(BIN)/encore doctor explains a broken environment"

setup: ## Create .venv with the pinned versions; installs nothing when it is up to date
	@$(PYTHON) infra/bootstrap.py

packages: # the same without what only tests and checks need
	@$(PYTHON) infra/bootstrap.py demo

demo: packages ## From synthetic preference pairs to weights, a reward model and its benchmark table, in minutes
	@$(BIN)/python -m flows.demo $(ARGS)

up: packages ## Start servers and workers for flows on this machine: make up ENGINES=2
	@$(BIN)/python -m infra.stack up --engines $(ENGINES) --prefect-port $(PREFECT_PORT) --mlflow-port $(MLFLOW_PORT)

down: ## Stop what make up started; its folder, stack/, stays
	@$(BIN)/python -m infra.stack down

test: setup ## The default test suite, in two processes
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-services: setup ## Slower tests: flows, demos, real servers, engines and commands as processes, simulations, reports
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "services and not full" $(ARGS)

test-full: setup ## All tests, long counts too, none skipped; needs root and .ci/packages
	@ENCORE_STRICT_SKIPS=1 $(BIN)/python -m pytest -n 3 --dist loadfile -m "full or services or not full" $(ARGS)

lint: setup ## Style and likely bugs (ruff)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## Types (mypy, strict on encore/)
	@$(BIN)/mypy

imports: setup ## Import rules (import-linter)
	@$(BIN)/lint-imports

check: lint types imports ## lint, types and imports

perf: setup ## Measure speed and memory, and write the machine's page in docs/benchmarks/
	@$(BIN)/python -m tests.perf $(ARGS)

hashes: setup ## Write infra/hashes.txt, after a change of infra/constraints.txt
	@$(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 --no-deps --generate-hashes \
		--no-annotate --no-header --default-index https://pypi.org/simple infra/constraints.txt -o infra/hashes.txt

docs: setup ## Build the documentation's site into build/site, with its tutorials executed
	@$(BIN)/python -m pip install --quiet -c infra/constraints.txt -c infra/docs-constraints.txt -e '.[docs]'
	@mkdir -p build/tutorials
	@cd build/tutorials && NO_MKDOCS_2_WARNING=1 ../../$(BIN)/mkdocs build --quiet --strict -f ../../infra/mkdocs.yml
	@echo "the site is in build/site; to read it: $(BIN)/python -m http.server -b 127.0.0.1 -d build/site 8000"

clean: ## Remove caches and builds; keeps .venv and studies
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -path ./.venv -prune -o -type d -name __pycache__ -print | xargs rm -rf
