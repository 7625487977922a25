# Every target does its own set-up. TORCH_INDEX=<url> takes torch from another index (such as a CPU-only one).
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT_BASE ?= 8000
ARGS ?=
WORKERS ?= 3
PIP_FLAGS := --disable-pip-version-check --no-input
LOCK := pyproject.toml requirements.txt constraints.txt clients/python/pyproject.toml
MODEL := var/models/smollm2-135m-instruct/.complete
EXTRAS := gateway,controlplane,worker,observability,sagemaker-local,demo,train,dev

# mypy's plugin for Django remembers the modules of models: when one moves, mypy needs an empty cache.
MODELS := $(shell git ls-files '*/models.py' '*/models/*.py' | sha256sum | cut -c1-12)
# tests/scheduling.py says which tests run in one process; WORKERS=0 runs all in this one.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS)

.PHONY: setup demo test test-slow coverage check faults mutate fuzz bench lint lock sbom clients screenshots clean

setup: $(VENV)/.installed $(MODEL)

$(VENV)/.installed $(VENV)/.demo: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Graftwork needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@TORCH_INDEX="$(TORCH_INDEX)" $(PYTHON) deploy/install.py $(if $(filter %.demo,$@),demo,all) --venv $(VENV)
	@# What everything needs includes what the demo needs.
	@touch $(VENV)/.demo $@

$(MODEL): | $(VENV)/.demo
	@echo "==> demo model (about 10 s)"
	@$(BIN)/python -m demo.model

demo: $(VENV)/.demo $(MODEL)
	@$(BIN)/python -m demo --port-base $(PORT_BASE) $(ARGS)

test: setup
	@$(PYTEST) -m "not slow" $(ARGS)
	@$(if $(ARGS),,$(PYTEST) --database sqlite -m "sqlite and not slow")

# What is too long for every commit; before a release.
test-slow: setup
	@$(PYTEST) -m slow $(ARGS)
	@$(if $(ARGS),,GRAFTWORK_TEST_GATEWAY_SERVER=uvicorn $(PYTEST) -m "not slow" tests/gateway)

# Line and branch coverage of each plane, processes that tests start included; slower than `make test`.
coverage: setup
	@rm -rf var/coverage && mkdir -p var/coverage
	@$(BIN)/coverage run -m pytest -q -n $(WORKERS) -m "not slow" $(ARGS) || true
	@$(BIN)/coverage combine -q
	@for plane in contracts gateway controlplane worker_engine optimizer kernels; do \
		echo "$$plane $$($(BIN)/coverage report --include="$$plane/*" | tail -n 1)"; done

lint: $(VENV)/.installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.architecture.migration_lint
	@MYPY_CACHE_DIR=$${MYPY_CACHE_DIR:-.mypy_cache}/$(MODELS) $(BIN)/mypy --num-workers 2

check: lint test

# Whether tests fail with each fault of tests/faults/injected.py in the source.
faults: setup
	@$(BIN)/python -m tests.faults

# Which of a seeded sample of mutants the tests find, into var/mutation; ARGS="--seed 1 --count 200 --tree PATH".
mutate: setup
	@$(BIN)/python -m tests.faults.mutate $(ARGS)

# Random grammars, schemas, usage, archives and HTTP requests for 10 minutes each; ARGS="http --minutes 1 --seed 2".
fuzz: setup
	@$(BIN)/python -m tests.fuzz $(ARGS)

bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

bench-%: setup
	@$(BIN)/python -m benchmarks $* $(ARGS)

# Other people's clients, for tests/clients/test_outside.py; in an environment of their own.
clients: var/clients/.installed

var/clients/.installed: tests/clients/environments.txt
	@grep -v '^#' $< | while read -r name others; do \
		$(PYTHON) -m venv var/clients/$$name && \
		var/clients/$$name/bin/pip install $(PIP_FLAGS) --quiet $$name $$others </dev/null || exit 1; done
	@if command -v npm >/dev/null; then npm install --prefix var/clients --no-audit --no-fund openai@7; fi
	@touch $@

# The web UI's pages, light, dark and on a phone, into docs/screenshots.
screenshots: setup
	@GRAFTWORK_TEST_PICTURES=1 $(BIN)/python -m pytest -q tests/ui/shots.py

# Install what pyproject.toml newly needs, then lock the installed versions with the hashes of their files.
lock: $(VENV)/.installed
	@$(BIN)/pip install $(PIP_FLAGS) --quiet --no-build-isolation -c constraints.txt -e '.[$(EXTRAS)]' -e 'clients/python[cli]'
	@$(BIN)/python deploy/lock.py $(EXTRAS)

# What is installed, as CycloneDX, and each package's licence, into var/sbom.
sbom: $(VENV)/.installed
	@$(PYTHON) -m venv var/sbom/tools
	@var/sbom/tools/bin/pip install $(PIP_FLAGS) --quiet cyclonedx-bom==7.5.0 pip-licenses==5.5.5
	@var/sbom/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file var/sbom/graftwork.cdx.json $(BIN)/python
	@var/sbom/tools/bin/pip-licenses --python $(BIN)/python --format markdown --order license --with-urls \
		--output-file var/sbom/licences.md

clean:
	rm -rf $(VENV) var .mypy_cache .ruff_cache .pytest_cache
