# Two commands do everything: `make demo` and `make test`. Each sets up its own virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HALVES := -n 2 --dist worksteal  # so that what tests of a file share is made once
export OMP_WAIT_POLICY ?= PASSIVE
unexport PYTHONDONTWRITEBYTECODE  # else each process compiles all modules again

.PHONY: help demo test test-here test-fast test-federation check bench bench-peers bench-scale fuzz clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

$(READY): pyproject.toml paper/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e paper
	@touch $(READY)

demo: $(READY)  ## train on the embedded task, serve every width, write a report (about 3 minutes)
	$(BIN)/splitmix train configs/demo.toml --out runs/demo --resume

test: $(READY)  ## all tests; federations mostly wait, so they run beside the others
	@$(MAKE) --no-print-directory -j 2 test-federation test-here

test-here: $(READY)  ## the tests without federations of processes
	$(BIN)/python -m pytest $(HALVES)

test-fast: $(READY)  ## the inner loop: each room without what is slow (a good half minute on two cores)
	$(BIN)/python -m pytest $(HALVES) -m 'not slow and not federation'

test-federation: $(READY)  ## real Flower processes, killed, refused and resumed (some minutes)
	$(BIN)/python -m pytest -m federation tests/flower/test_flower_processes.py

check: $(READY)  ## format, lint, types and tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

bench: $(READY)  ## speed against a plain reference; writes results/speed.md
	env -u OMP_WAIT_POLICY $(BIN)/python benchmarks/speed.py

bench-peers: $(READY)  ## rounds beside other simulators; writes results/peer_speed.md (about a quarter of an hour)
	env -u OMP_WAIT_POLICY $(BIN)/python benchmarks/peer_speed.py

bench-scale: $(READY)  ## what a server costs as a federation grows; writes results/scale.md (some minutes)
	$(BIN)/python benchmarks/scale.py

fuzz: $(READY)  ## 10,000 mutants over all readers of what strangers send (some minutes)
	PYTHONPATH=tests $(BIN)/python -m fuzz --mutants 10000

clean:  ## remove what was made
	rm -rf $(VENV) runs build .pytest_cache .mypy_cache .ruff_cache .hypothesis
