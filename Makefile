# Every target does its own set-up: a machine with Python (3.10 to 3.13), gcc and make is enough.
#   make demo       record a real two-rank training with a planted bottleneck and diagnose it
#   make test       lint, types, tests, generated docs (what CI runs)
#   make test-long  the same tests at full size: fuzzing, big traces
#   make venvs      the environments that test-long uses beside .venv: other torch versions, frameworks (10 GB)
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
NEWEST_TORCH := torch==2.14.1
OLDEST_TORCH := torch==2.4.1
FRAMEWORKS := deepspeed lightning transformers accelerate tensorboard coverage opentelemetry-distro
PYTEST_WORKERS ?= 2
# Torch 2.13 itself aborts at the end of about one in a hundred jobs, also with DDIAG_DISABLE=1: those are tried again.
RERUN := --reruns 2 --only-rerun 'terminate called without an active exception'
# The recorder's native kernel: half a minute of one core, once; without a compiler its tests are skipped.
KERNEL := if command -v $${CXX:-g++} > /dev/null; then nice $(BIN)/python -m ddiag.capture.native build --if-missing; fi

.PHONY: help setup demo test lint test-long venvs bench docs clean

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

# Torch 2.4 knows numpy 1 best, and Python 3.13 not at all.
.venv-torch24/stamp: Makefile
	@echo 'Setting up .venv-torch24 (3 GB to fetch, once) …'
	@[ -x .venv-torch24/bin/python ] || $(PYTHON) -m venv .venv-torch24
	@.venv-torch24/bin/python $(PIP_INSTALL) $(OLDEST_TORCH) 'numpy<2' setuptools
	@touch $@

.venv-torch214/stamp: Makefile
	@echo 'Setting up .venv-torch214 (3 GB to fetch, once) …'
	@[ -x .venv-torch214/bin/python ] || $(PYTHON) -m venv .venv-torch214
	@.venv-torch214/bin/python $(PIP_INSTALL) $(NEWEST_TORCH) numpy setuptools
	@touch $@

.venv-frameworks/stamp: tools/constraints-frameworks.txt pyproject.toml
	@echo 'Setting up .venv-frameworks (a minute or two, once) …'
	@[ -x .venv-frameworks/bin/python ] || $(PYTHON) -m venv .venv-frameworks
	@.venv-frameworks/bin/python $(PIP_INSTALL) -c tools/constraints-frameworks.txt -e . $(TORCH) $(FRAMEWORKS)
	@touch $@

setup: .venv/stamp

venvs: .venv-frameworks/stamp .venv-torch214/stamp .venv-torch24/stamp

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
	@($(KERNEL)) & built=$$!; \
	  $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadgroup --ignore tests/integration; wait $$built
	# Real trainings are timed: they get the machine for themselves.
	$(BIN)/python -m pytest -q $(RERUN) tests/integration

# Tests that need an environment of `make venvs` are skipped where it is not.
test-long: .venv/stamp .venv-hta/stamp
	@tools/get_chromium
	@$(KERNEL)
	$(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadgroup -m long --timeout 1800 --ignore tests/integration
	$(BIN)/python -m pytest -q $(RERUN) -m long --timeout 1800 tests/integration

bench: .venv/stamp .venv-hta/stamp
	$(BIN)/python -m tools.bench_ingest
	$(BIN)/python -m tools.bench_hang
	$(BIN)/python -m ddiag.capture.native build --if-missing
	$(BIN)/python -m tools.bench_recorder --instructions

docs: .venv/stamp
	$(BIN)/python -m tools.gen_rule_docs
	$(BIN)/python -m tools.gen_readme

clean:
	rm -rf .venv .venv-hta .venv-frameworks .venv-torch214 .venv-torch24 .bench .mypy_cache .ruff_cache .pytest_cache demo-out dist
