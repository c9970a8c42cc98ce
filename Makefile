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

.PHONY: help demo test test-slow hf app notebooks benchmark docs docs-serve docs-pages dist types platforms format \
	lock lock-docs clean

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

dist: $(VENV)/installed-dist ## builds the wheel and the sdist into dist/ and checks their metadata
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

types: $(VENV)/installed-dist ## checks with pyright, as an editor of a user sees the package
	PATH="$(BIN):$$PATH" $(BIN)/python -m pytest -m slow -p no:xdist tests/packaging/test_types.py

platforms: dist ## resolves the wheel's requirements for Linux, macOS and Windows
	$(BIN)/python -m tests.packaging.platforms dist/*.whl

# Material's advertisement of its successor is not for us.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

docs: $(VENV)/installed-docs ## builds the documentation site into build/site; a broken link is an error
	$(MKDOCS) build --strict --quiet

docs-serve: $(VENV)/installed-docs ## serves the site on http://127.0.0.1:8000 while you write
	$(MKDOCS) serve

docs-pages: $(VENV)/installed ## writes the pages of docs/reference that are made from the code
	$(BIN)/python docs/make_reference.py

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

$(VENV)/installed-dist: requirements-dist.lock $(VENV)/installed
	@echo "installing the versions of requirements-dist.lock"
	$(PIP) install -c requirements.lock -r requirements-dist.lock
	@touch $@

# The site is built from the text of the code, so nothing else is needed.
$(VENV)/installed-docs: requirements-docs.lock | $(BIN)/python
	@echo "installing the versions of requirements-docs.lock"
	$(PIP) install --no-deps -r requirements-docs.lock
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
	$(VENV)-lock/bin/python -m pip install --quiet --upgrade setuptools wheel '.[examples,plots,test]'
	$(VENV)-lock/bin/python -m pip install --quiet --no-deps bert4keras==0.11.5
	{ head -2 requirements.lock; $(VENV)-lock/bin/python -m pip freeze --all \
		| grep -vE '^(pip|roformer)\b'; } > requirements.lock.new
	mv requirements.lock.new requirements.lock
	rm -rf $(VENV)-lock

# With the versions of requirements.lock, where a package is in both. pymdown-extensions 13 needs
# Python 3.11.5, and Debian 12 has 3.11.2.
lock-docs: ## resolves what `make docs` needs again and writes requirements-docs.lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet -c requirements.lock \
		jieba latex2mathml mkdocs-material 'mkdocstrings[python]' pandas 'pymdown-extensions<13' ruff
	{ head -2 requirements-docs.lock; $(VENV)-lock/bin/python -m pip freeze \
		| LC_ALL=C sort -f -t= -k1,1; } > requirements-docs.lock.new
	mv requirements-docs.lock.new requirements-docs.lock
	rm -rf $(VENV)-lock

clean: ## removes the environment and everything that was built
	rm -rf $(VENV) build dist output .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
