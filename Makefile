# `make demo` and `make test` need Python 3.11+ and nothing else: they set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready

.PHONY: demo test bench fuzz lint format clean

demo: $(SETUP)
	$(BIN)/penstock demo

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

bench: $(SETUP)
	$(BIN)/python -m benchmarks

# Two minutes of mutated files; ends at the first that is not refused or read as it should be.
fuzz: $(SETUP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt atheris
	$(BIN)/python tests/attacks/fuzz.py -max_total_time=120

lint: $(SETUP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(SETUP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv demo-data bench-data .hypothesis .mypy_cache .pytest_cache .ruff_cache

# torch comes first and by its exact version, so that nothing else chooses a build of it.
$(SETUP): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,text,ray]' --group dev
	touch $@
