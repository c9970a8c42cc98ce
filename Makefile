# `make demo` and `make test` start from nothing: they make .venv and install the tested versions.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Python 3.11, 3.12 or 3.13: the first on PATH that is one of them, or name it: make PYTHON=python3.12
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)
# PyTorch without CUDA is a tenth of the size: name the index of its CPU builds (pytorch.org, "Get started")
# as make hf TORCH_INDEX=...
TORCH_INDEX ?=
# In two processes where there are two cores: each grows to some 6 GB.
PYTEST_ARGS ?= --numprocesses auto --maxprocesses 2 --dist loadfile --no-loadscope-reorder
DEMO_ARGS ?=
BENCHMARK_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test test-slow hf app notebooks benchmark format lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: $(VENV)/installed ## fills masks, fine-tunes, exports and serves, on real text
	$(BIN)/python examples/demo.py $(DEMO_ARGS)

test: $(VENV)/installed ## lint, format, tests and docstring examples: at most 10 minutes on two cores
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/installed ## kills, long runs, worker processes, other backends; draws a new seed
	ROFORMER_TF_SEED=$${ROFORMER_TF_SEED:-$$RANDOM} $(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

hf: $(VENV)/installed-hf ## adds PyTorch, Transformers, LiteRT and ONNX, to compare with

app: $(VENV)/installed-app ## adds Gradio, for the app, and the browser's driver, to test pages

notebooks: $(VENV)/installed ## makes notebooks of three tutorials, into build/notebooks
	$(BIN)/python docs/make_notebooks.py

benchmark: $(VENV)/installed-hf ## measures beside bert4keras and Hugging Face
	$(BIN)/python -m benchmarks $(BENCHMARK_ARGS)

format: $(VENV)/installed ## formats the code and fixes what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# bert4keras' requirements are for Keras 2.3, and jieba, snownlp and bert4keras are built from source
# with the pinned setuptools: so no dependencies are looked up and no build is isolated.
$(VENV)/installed: requirements.lock setup.cfg | $(BIN)/python
	@echo "installing the versions of requirements.lock (some minutes the first time)"
	$(PIP) install $$(grep -E '^(setuptools|wheel)==' requirements.lock)
	$(PIP) install --no-deps --no-build-isolation -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# PyTorch brings libraries that differ by platform, so here the dependencies are looked up.
$(VENV)/installed-hf: requirements-hf.lock $(VENV)/installed
	@echo "installing the versions of requirements-hf.lock"
	$(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		-c requirements.lock -r requirements-hf.lock
	@touch $@

$(VENV)/installed-app: requirements-app.lock $(VENV)/installed
	@echo "installing the versions of requirements-app.lock"
	$(PIP) install --no-deps -r requirements-app.lock
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Needs Python 3.11, 3.12 or 3.13 on PATH, or: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

lock: ## resolves setup.cfg again and writes requirements.lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --upgrade setuptools wheel '.[demo,plots,test]'
	$(VENV)-lock/bin/python -m pip install --quiet --no-deps bert4keras==0.11.5
	{ head -2 requirements.lock; $(VENV)-lock/bin/python -m pip freeze --all \
		| grep -vE '^(pip|roformer)\b'; } > requirements.lock.new
	mv requirements.lock.new requirements.lock
	rm -rf $(VENV)-lock

clean: ## removes the environment and everything that was built
	rm -rf $(VENV) build dist output .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
