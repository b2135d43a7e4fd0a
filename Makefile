# Two commands matter: `make train` and `make test`. Each builds what it needs on a machine with Python 3.11 and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch is pinned in constraints.txt, for every install: an unpinned one pulls gigabytes of CUDA libraries.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup train test lint bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --retries 10 "$$(cat constraints.txt)"
	$(BIN)/pip install --quiet --retries 10 --editable ".[dev]"
	touch $@

train: setup
	$(BIN)/clusterenv train ppo --env-id LunarLander-v3 --cluster local:2
	$(BIN)/clusterenv plot runs/latest --out runs/latest.png

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs examples benchmarks experiments fuzz README.md CHANGELOG.md SECURITY.md
	$(BIN)/python scripts/check_sizes.py

# In random order, on three processes, since some of them wait; documentation examples are tests too.
test: setup lint
	$(BIN)/python -m pytest -n 3 --dist loadgroup
	$(BIN)/python -m pytest -p no:randomly --doctest-modules src/clusterenv

bench: setup
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.startup

clean:
	rm -rf $(VENV) build dist
