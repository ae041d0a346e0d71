# Two commands: `make demo` and `make test`. Every target that needs the environment creates it in .venv first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# What `make demo` needs is a part of it; either stamp serves it.
RUN_STAMP := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-run)

export DO_NOT_TRACK := 1
# Python keeps what it compiled: without that every command compiles its libraries anew, up to seven seconds of it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo stack screenshots figures docs test test-servers test-containers test-clients test-long attacks gpu wheel check format lock clean setup
help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 14

setup: $(STAMP)  ## create .venv with the pinned versions

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh dev
	@touch $@

$(VENV)/.installed-run: requirements.lock pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh run
	@touch $@

demo: $(RUN_STAMP)  ## make up reports, train and release formally, code three reports with the release
	@bash scripts/demo.sh "$(BIN)" "$(or $(DEMO_HOME),demo-workspace)"

stack: $(STAMP)  ## PostgreSQL, Redis, Prefect's server and services, three workers, on free ports; Ctrl-C stops
	$(BIN)/python scripts/stack.py --folder "$(or $(STACK_FOLDER),stack)" --data "$(DATA)" --codelist "$(CODELIST)"

screenshots: $(STAMP)  ## the diagrams and pictures in docs/pictures, of a stack of its own; needs chromium
	$(BIN)/python scripts/screenshots.py

figures: $(STAMP)  ## the published figures again, or those that FIGURES_ARGS="--only NAMES" names (scripts/figures.py)
	$(BIN)/python scripts/figures.py $(FIGURES_ARGS)

docs: $(STAMP)  ## the documentation as a site in site/, to be read from the disk; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: open site/index.html"

PYTEST = $(BIN)/pytest -n "$(or $(TEST_WORKERS),2)" --no-loadscope-reorder

test: $(STAMP)  ## the tests, two files at a time; TEST_WORKERS=0 for one
	$(PYTEST) -m "not servers and not postgres and not long and not containers and not clients" $(PYTEST_ARGS)

test-servers: $(STAMP)  ## the tests with servers, kills and full disks: PostgreSQL, Prefect, the service, all that `make stack` starts
	$(PYTEST) -m "(servers or postgres) and not long" $(PYTEST_ARGS)

test-containers: $(STAMP)  ## docker-compose.yml in a real engine; wants root and Debian's packages (scripts/containers.sh)
	$(BIN)/pytest -m containers $(PYTEST_ARGS)

test-clients: $(STAMP)  ## the test vectors in the oldest and newest libraries a bundle is promised for; wants their wheels: nightly
	$(BIN)/pytest -m clients $(PYTEST_ARGS)

test-long: $(STAMP)  ## random kills, long races, searches: nightly
	$(PYTEST) -m long $(PYTEST_ARGS)

gpu:  ## on a machine with a GPU: its tests, its speed, the whole chain; GPU_WHEELS=folder (scripts/gpu.sh)
	bash scripts/gpu.sh run "$(or $(GPU_WHEELS),gpu-wheels)" --json benchmarks/gpu.json

wheel: $(STAMP)  ## build the wheel, install it outside the checkout and run the main job there
	@bash scripts/check_wheel.sh "$(BIN)"

check: $(STAMP)  ## formatter, linters, types, import arrows, prose, docker-compose.yml
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_prose.py
	$(BIN)/codespell README.md PRIVACY.md CONTRIBUTING.md docs tasks/pages/templates
	$(BIN)/hadolint deployments/images/autocoder.Dockerfile
	@bash scripts/check_compose.sh

format: $(STAMP)  ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(STAMP)  ## resolve the dependencies anew into requirements.lock
	bash scripts/lock.sh "$(BIN)"

attacks: $(STAMP)  ## print the table of attacks that tests/attacks tries
	@$(BIN)/python scripts/list_attacks.py

clean:  ## remove the environment and the demo's workspace
	rm -rf $(VENV) demo-workspace
