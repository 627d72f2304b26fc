# `make` lists the targets. Everything is installed into .venv, and only once.
# ARGS is handed on: make test ARGS="-k duration", make demo ARGS="--help".

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=

# Keep bytecode, also where the environment says otherwise: the tests import the package in hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-rest test-all test-durations coverage mutants facts chaos interop check docs site tutorials images bench bench-peers dist matrix clean

# Processes steal work from one another, so that none waits at the end. The tests of other tiers often wait for child
# processes: more of them run at once than there are cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --dist worksteal -q

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## train a small model and show what the callbacks do
	$(BIN)/hookline demo $(ARGS)

test: $(VENV)/.installed-test ## run the fast tests (7 minutes)
	$(PYTEST) -n 2 -m fast $(ARGS)

test-rest: $(VENV)/.installed-test ## run the other tests: processes, browser, trackers, slow
	$(PYTEST) -n 4 -m "not fast and not interop" $(ARGS)

test-all: $(VENV)/.installed-test ## run all tests (23 minutes)
	$(PYTEST) -n 3 $(ARGS)

test-durations: $(VENV)/.installed-test ## run the fast tests and list those above 1.5 s of CPU time
	$(PYTEST) -n 2 -m fast --cpu-limit 1.5 $(ARGS)

coverage: $(VENV)/.installed-coverage ## run all tests and measure which branches they take
	rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n 3 --dist worksteal -q $(ARGS)
	$(BIN)/coverage combine -q build/coverage
	$(BIN)/coverage report --skip-covered

mutants: $(VENV)/.installed-test ## change the code in 200 places and see whether a test fails each time
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py $(ARGS)

facts: $(VENV)/.installed-test ## print facts about the form of the engine, next to their targets
	$(BIN)/python tests/architecture/facts.py

chaos: $(VENV)/.installed-test ## kill and signal real runs hundreds of times (10 minutes)
	HOOKLINE_CHAOS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -q --timeout 900 tests/chaos tests/checkpoint \
		tests/distributed/test_killed_saves.py tests/distributed/test_resume_elsewhere.py \
		tests/cli/test_verify_resume_faults.py $(ARGS)

interop: $(VENV)/.installed-test ## run callbacks and modules of other libraries, each in its own environment
	OMP_NUM_THREADS=1 $(BIN)/python tests/interop/environments.py $(ARGS)

# The demo group is there for mypy: the result must not depend on what else is installed.
check: $(VENV)/.installed-check $(VENV)/.installed-demo ## lint, format, types, layers, generated docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tests/docs/page_code.py build/pages
	MYPYPATH=src $(BIN)/mypy --config-file tests/docs/mypy.ini build/pages examples tests/docs/user_types.py
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m hookline.cli.docs --check

docs: $(VENV)/.installed-check ## write the generated docs
	$(BIN)/python -m hookline.cli.docs

site: $(VENV)/.installed-site ## build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q $(ARGS)
	@echo "build/site/index.html"

tutorials: $(VENV)/.installed-test ## run the tutorials that were changed, write their pages and notebooks
	OMP_NUM_THREADS=1 $(BIN)/python docs/tutorials/make_tutorials.py $(ARGS)

images: $(VENV)/.installed-test ## draw all images of the README and of the documentation (needs Chromium)
	$(BIN)/python docs/images/make_drawings.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/images/make_images.py

bench: $(VENV)/.installed-bench ## measure the overhead against a bare loop and other libraries
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-peers: $(VENV)/.installed-test ## measure other libraries next to Hookline, each in its own environment
	$(BIN)/python benchmarks/peers.py $(ARGS)

dist: $(VENV)/.installed-dist ## build wheel and sdist, check them, try the wheel in a clean environment
	$(BIN)/python release/dist.py

matrix: ## run the fast tests with several Pythons and versions of torch
	$(PYTHON) release/matrix.py $(ARGS)

clean: ## delete caches and build products (not .venv, not runs)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# One stamp for each dependency group. An install is done again when the two files that decide it change.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/.pip
	@echo "installing Hookline and the group '$*' into $(VENV) (the first time takes a few minutes)"
	@$(PIP) install -qq -c constraints.txt -e . --group $*
	@touch $@

$(VENV)/.pip: | $(BIN)/python
	@$(PIP) install -qq -c constraints.txt --upgrade pip
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
