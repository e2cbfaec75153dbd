# Everything a newcomer runs. Needs python3 (3.11 or newer) and coreutils; the rest goes into .venv.
#   make demo ONCE=1           run the demo's checks and end
#   make test ARGS="-k alias"  pass options on (also demo, bench, prove)
#   make PYTHON=python3.12 ..  use another Python; .venv is made anew for it

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check parts up down status logs crds test-real drill bench prove lock clean python run-set dev-set

help:  ## List these targets
	@$(PYTHON) -c 'import re; [print("make %-9s %s" % line) for line in re.findall(r"^([\w-]+):.*?## (.*)$$", open("Makefile").read(), re.M)]'

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

parts: dev-set  ## Get the real parts of three regions (Linux, root); once, into a cache
	$(BIN)/python -m local.parts $(ARGS)

up: parts  ## Run three regions on this machine, or heal what was killed
	$(BIN)/python -m local up

down: dev-set  ## End the three regions and remove all that they left
	$(BIN)/python -m local down

status: dev-set  ## Show what runs where in the three regions
	@$(BIN)/python -m local status

logs: dev-set  ## Show a region's logs: make logs R=us-east-1 [C=kubelet]
	@$(BIN)/python -m local logs $(R) $(C)

crds: dev-set  ## Write operator/crds/ anew, after a change in the operator's kinds
	$(BIN)/python -m shortlink_operator.crds

# The second driver keeps the same contract; the platform is taken down last, to see what it leaves.
# A test's time has its fixtures' in it, such as making and dropping a keyspace in three regions.
REAL = $(BIN)/python -m pytest --timeout 180
test-real: up  ## Run the contract and the tests on the real parts; ends the three regions
	$(REAL) tests/contract tests/real --stores sqlite,postgresql,cassandra \
		--ignore=tests/real/test_platform_leaves_nothing.py
	$(REAL) tests/contract --stores cassandra-native
	$(REAL) tests/real/test_platform_leaves_nothing.py

drill: dev-set  ## Break the three regions on purpose and count what was lost: make drill D=outages
	$(BIN)/python -m tests.drills.$(or $(D),$(error which one? make drill D=outages)) $(ARGS)

bench: dev-set  ## Run the side-by-side benchmarks
	$(BIN)/python -m bench $(ARGS)

prove: dev-set  ## Run the long evidence
	$(BIN)/python -m tests.prove $(ARGS)

# One lock for all platforms and every Python from 3.11. Pins that still fit are kept.
COMPILE = $(BIN)/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --custom-compile-command "make lock"

lock: dev-set  ## Lock the dependencies anew, after a change in pyproject.toml
	$(COMPILE) --group build -o requirements/run.txt
	$(COMPILE) --extra regions -c requirements/run.txt -o requirements/regions.txt
	$(COMPILE) --group build --group dev --extra regions --extra stacks -c requirements/regions.txt -o requirements/dev.txt

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
