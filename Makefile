# Two commands set everything up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-fuzz test-gpu test-distributed lint bench clean

help: ## Show the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[report,cluster]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

# Two seeds, and evaluations as seldom as curves allow, in a minute on two cores.
demo: $(VENV)/.demo ## Install, then compare methods on the bundled data: an answer and a report page
	$(BIN)/idiolect compare methods=local,fedavg,apfl,additive,efl,pfedkm,perm data=vowels seeds=2 evaluate_every=10 out=runs/demo

# Two processes with one thread each: with two each they would wait for one another. Each begins with a half of the
# files, so that what the tests of a file share is mostly made once.
test: $(VENV)/.dev ## Install what the tests need and run them all
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

test-slow: $(VENV)/.dev ## The long tests: paper studies, large federations
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-fuzz: $(VENV)/.dev ## Ever new networks on all engines, for FUZZ_MINUTES=60
	$(BIN)/python -m pytest -m fuzz $(PYTEST_ARGS)

test-gpu: $(VENV)/.dev ## On a machine with a GPU: parity and speed against the CPU (a minute)
	$(BIN)/python -m pytest -m gpu -s tests/devices/test_gpu.py $(PYTEST_ARGS)

$(VENV)/.distributed: $(VENV)/.dev
	$(PIP) -e '.[dev,distributed]'
	@touch $@

# Two files at a time: these tests wait more than they compute.
test-distributed: $(VENV)/.distributed ## Ray actors, and silos on Flower as processes of their own (minutes)
	OMP_NUM_THREADS=1 timeout 2700 $(BIN)/python -m pytest -n 2 --dist loadfile -m distributed tests/distributed $(PYTEST_ARGS)

lint: $(VENV)/.dev ## Linters and type checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev ## Speed ratios against a plain loop, measured in one run
	$(BIN)/idiolect bench

clean: ## Remove the environment and caches (never runs/)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
