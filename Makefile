# Eyrie's commands. Each does the set-up it needs (.venv from the lock); once that is done it costs a few milliseconds.
#   make demo | smoke | test   take ARGS="…": Hydra overrides, or pytest's options
#   make PYTHON=python3.12 …   picks the interpreter that .venv is made with
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo smoke test test-long lint lock clean FORCE

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
LOCK := requirements/cpu.txt
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TEST_LIMIT_S ?= 1800
ARGS ?=
# The first that runs: a pyenv shim may exist and still have nothing behind it.
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)

# Made last, and named after the lock's pins: another lock, or a set-up that was interrupted, starts from nothing.
READY := $(VENV)/.ready-$(shell grep -v '^\#' $(LOCK) | sha256sum | cut -c1-16)

help:
	@echo "make demo       train and measure a draft of SmolLM2-135M on this CPU   (ARGS='train.lr=1e-3')"
	@echo "make smoke      the same chain, tiny: at most 3 minutes"
	@echo "make test       tests: at most 15 minutes                              (ARGS='-k shards')"
	@echo "make test-long  the tests that take longer"
	@echo "make lint       ruff and mypy"
	@echo "make lock       requirements/*.txt again from pyproject.toml"
	@echo "make clean      removes .venv and caches; keeps outputs/"

setup: $(READY)

# A .venv whose interpreter is gone is no set-up either.
$(READY): $(shell test -x $(PY) || echo FORCE)
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Eyrie needs Python 3.11 or newer, and '$(or $(PYTHON),python3)' is not." >&2; \
	  echo "Install one and name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON): about 200 packages, 3 GB on disk, some minutes."
	@$(PYTHON) -m venv --clear $(VENV)
	@torch=$$(grep '^torch==' $(LOCK)); $(PIP) install -q --no-deps --no-compile $$torch || { \
	  echo "pip finds no $$torch on its own: taking it from PyTorch's CPU index"; \
	  $(PIP) install -q --no-deps --no-compile --index-url $(TORCH_INDEX) $$torch; }
	@$(PIP) install --no-deps --no-compile -r $(LOCK)
	@# Byte-compiling apart uses every core. Some packages ship templates that are no Python: their errors are no matter.
	@$(PY) -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

demo: setup
	$(PY) -m workflows.eagle3 experiment=smollm2_cpu $(ARGS)

smoke: setup
	$(PY) -m workflows.eagle3 experiment=smoke $(ARGS)

test: setup
	$(PY) -m pytest --session-timeout=$(TEST_LIMIT_S) --durations=10 $(ARGS)

test-long: setup
	$(PY) -m pytest -m "slow and not gpu" --timeout=3600 --durations=10 $(ARGS)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

lock: setup
	$(PY) requirements/lock.py --torch-index $(TORCH_INDEX) $(ARGS)

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
