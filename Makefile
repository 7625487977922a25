# Every target does its own set-up. TORCH_INDEX=<url> takes torch from another index (such as a CPU-only one).
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT_BASE ?= 8000
ARGS ?=
PIP_FLAGS := --disable-pip-version-check --no-input $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX),)
EXTRAS := gateway,controlplane,worker,demo,train,dev

.PHONY: setup demo test check bench lint lock browser clean

setup: $(VENV)/.installed var/models/smollm2-135m-instruct/.complete

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Graftwork needs Python 3.11 or newer: make setup PYTHON=python3.11"; exit 1; }
	@echo "==> virtual environment and packages (about a minute; more where torch comes with CUDA)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: on Debian, apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e '.[$(EXTRAS)]' | awk '\
		/^Collecting|^Obtaining/ { printf "\r    %d packages found", ++found; fflush() } \
		/^Installing collected/ { printf "\r    %d packages found, installing\n", found; fflush() }'
	@touch $@

var/models/smollm2-135m-instruct/.complete: | $(VENV)/.installed
	@echo "==> demo model (about 20 s)"
	@$(BIN)/python -m demo.model

demo: setup
	@$(BIN)/python -m demo --port-base $(PORT_BASE)

test: setup
	@$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: setup lint
	@$(BIN)/python -m pytest -q

bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

bench-%: setup
	@$(BIN)/python -m benchmarks $* $(ARGS)

lock: $(VENV)/.installed
	@$(BIN)/pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV) var .mypy_cache .ruff_cache .pytest_cache
