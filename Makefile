# Every target does its own set-up: a machine with Python (3.10 to 3.13), gcc and make is enough.
#   make demo       record a real two-rank training with a planted bottleneck and diagnose it
#   make test       lint, types, tests, generated docs (what CI runs)
#   make test-long  the same tests at full size: fuzzing, big traces
#   make bench      loading speed and memory against HTA and against the floor; what recording costs a training
#   make docs       regenerate rules/README.md and the example in README.md

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A name alone is not enough: a shim may exist for a version that does not.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do \
  if $$p -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then echo $$p; break; fi; done)
BIN := .venv/bin
HTA_BIN := .venv-hta/bin
PIP_INSTALL := -m pip install --quiet --quiet --disable-pip-version-check --no-input
TORCH := torch==2.13.0
PYTEST_WORKERS ?= 2

.PHONY: help setup demo test lint test-long bench docs clean

help:
	@sed -n 's/^#   //p' Makefile

.venv/stamp: pyproject.toml tools/constraints.txt
	@if [ -z '$(PYTHON)' ]; then echo 'ddiag needs Python 3.10 to 3.13; none was found. Set PYTHON=/path/to/python3.' >&2; exit 2; fi
	@echo 'Setting up .venv (a minute or two, once) …'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP_INSTALL) -c tools/constraints.txt -e '.[dev]' $(TORCH)
	@touch $@

.venv-hta/stamp: pyproject.toml tools/constraints-hta.txt
	@echo 'Setting up .venv-hta (about a minute, once) …'
	@[ -x $(HTA_BIN)/python ] || $(PYTHON) -m venv .venv-hta
	@$(HTA_BIN)/python $(PIP_INSTALL) -c tools/constraints-hta.txt -e '.[hta]'
	@touch $@

setup: .venv/stamp

demo: .venv/stamp
	@$(BIN)/python -m tools.demo

lint: .venv/stamp
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy --no-error-summary ddiag rules tools
	$(BIN)/python -m tools.gen_rule_docs --check
	$(BIN)/python -m tools.gen_readme --check

test: .venv/stamp .venv-hta/stamp lint
	@tools/get_chromium
	$(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadgroup --ignore tests/integration
	# Real trainings are timed: they get the machine for themselves.
	$(BIN)/python -m pytest -q tests/integration

test-long: .venv/stamp .venv-hta/stamp
	@tools/get_chromium
	$(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadgroup -m long --timeout 1800

bench: .venv/stamp .venv-hta/stamp
	$(BIN)/python -m tools.bench_ingest
	$(BIN)/python -m ddiag.capture.native build --if-missing
	$(BIN)/python -m tools.bench_recorder

docs: .venv/stamp
	$(BIN)/python -m tools.gen_rule_docs
	$(BIN)/python -m tools.gen_readme

clean:
	rm -rf .venv .venv-hta .bench .mypy_cache .ruff_cache .pytest_cache demo-out dist
