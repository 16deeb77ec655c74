# Every target sets up .venv by itself; the stamp makes that a file comparison when it is done.
SHELL := /bin/bash
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# The extras that setup installs; `make setup EXTRAS=` leaves Atari out, and it stays out.
EXTRAS ?= $(shell cat $(VENV)/.extras 2>/dev/null || echo atari)
LOCKS := requirements.lock $(if $(filter atari,$(EXTRAS)),requirements-atari.lock)
RUNS ?= runs
ARGS ?=

export OMP_NUM_THREADS ?= 1

.PHONY: help setup train test test-slow check format bench accept clean

help:
	@echo "make setup      what every target does first: .venv with ludus, MuJoCo, Atari (ale-py, GPL-2.0) and video in it"
	@echo "                make setup EXTRAS=  leaves Atari out"
	@echo "make train      train an agent on CartPole, print its score and where its results are"
	@echo "make test       all tests but the slow ones"
	@echo "make test-slow  the slow ones: runs that learn, faults, fuzzing (FUZZ=new: with new cases)"
	@echo "make check      lint, format, types, audit"
	@echo "make bench      speed against peers"
	@echo "make accept     which acceptance lines are proven, by tests of both sets"

setup: $(STAMP)

# Everything by its hash but torch, which comes by its range alone, so that a CPU build found on
# this machine is taken. requirements.lock holds the build backend, too.
$(STAMP): pyproject.toml $(wildcard requirements*.lock)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes $(addprefix -r ,$(LOCKS))
	$(BIN)/python -m pip install --quiet "torch>=2.11,<2.14"
	@$(BIN)/python -m pip uninstall --quiet --yes ludus $(if $(filter atari,$(EXTRAS)),,ale-py) 2>/dev/null
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@echo "$(EXTRAS)" > $(VENV)/.extras
	@touch $(STAMP)

# Other extras than the last time: set up again.
ifneq ($(strip $(EXTRAS)),$(strip $(shell cat $(VENV)/.extras 2>/dev/null)))
.PHONY: $(STAMP)
endif

train: $(STAMP)
	$(BIN)/ludus train ppo CartPole-v1 seed=1 eval.episodes=30 --runs-dir $(RUNS) $(ARGS)

# One worker more than cores: many tests wait for processes.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test: $(STAMP)
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(STAMP)
	$(PYTEST) -m slow $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/audit.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Peers live in their own environments under .peers/, made by the scripts.
bench: $(STAMP)
	@set -e; for script in benchmarks/*_peers.py; do $(BIN)/python $$script $(ARGS); done

accept: $(STAMP)
	$(BIN)/python tools/accept.py $(ARGS)

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
