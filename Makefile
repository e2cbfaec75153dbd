# Everything a newcomer runs. Needs python3 (3.11 or newer) and coreutils; the rest goes into .venv.
#   make demo ONCE=1           run the demo's checks and end
#   make test ARGS="-k alias"  pass options on (also demo, bench, prove)
#   make PYTHON=python3.12 ..  use another Python; .venv is made anew for it

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check bench prove lock clean python run-set dev-set

help:  ## List these targets
	@$(PYTHON) -c 'import re; [print("make %-6s %s" % line) for line in re.findall(r"^(\w+):.*?## (.*)$$", open("Makefile").read(), re.M)]'

demo: run-set  ## Run the platform on this machine; ONCE=1: prove that it works, and end
	@$(BIN)/shortlink demo $(if $(ONCE),--once) $(ARGS)

test: dev-set  ## Run the quick tests, with the domain's full coverage
	@$(BIN)/python tests/fetch_testdata.py
	$(BIN)/python -m pytest $(or $(ARGS),--cov --cov-report=term-missing:skip-covered)

check: dev-set  ## Lint, formatting, types, and the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: dev-set  ## Run the side-by-side benchmarks
	$(BIN)/python -m bench $(ARGS)

prove: dev-set  ## Run the long evidence
	$(BIN)/python -m tests.prove $(ARGS)

# One lock for all platforms and every Python from 3.11. Pins that still fit are kept.
COMPILE = $(BIN)/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --custom-compile-command "make lock"

lock: dev-set  ## Lock the dependencies anew, after a change in pyproject.toml
	$(COMPILE) --group build -o requirements/run.txt
	$(COMPILE) --group build --group dev -c requirements/run.txt -o requirements/dev.txt

clean:  ## Remove .venv and all caches; the demo's data in .shortlink/ and links/ stays
	rm -rf .venv .cache .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# The run set is what the demo needs; the dev set is that and everything else, in the same .venv.
run-set: python
	@$(PYTHON) requirements/install.py run

dev-set: python
	@$(PYTHON) requirements/install.py dev

python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not here: install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d; 3.11 or newer is needed (make PYTHON=...)" % sys.version_info[:2])'
