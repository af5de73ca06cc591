# `make demo` and `make test` need Python 3.11+ with its headers and a C compiler, and nothing else:
# they set up .venv themselves, and compile the kernels beside their sources.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
BUILT := .venv/.built
KERNELS := $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h')

.PHONY: demo test bench fuzz lint format clean

demo: $(BUILT)
	$(BIN)/penstock demo

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

bench: $(BUILT)
	$(BIN)/python -m benchmarks

# Two minutes of mutated files; ends at the first that is not refused or read as it should be.
fuzz: $(BUILT)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt atheris
	$(BIN)/python tests/attacks/fuzz.py -max_total_time=120

lint: $(BUILT)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(SETUP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build demo-data bench-data .hypothesis .mypy_cache .pytest_cache .ruff_cache

# torch comes first and by its exact version, so that nothing else chooses a build of it.
$(SETUP): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation \
		--editable '.[torch,text,ray]'
	touch $@

$(BUILT): $(SETUP) setup.py $(KERNELS)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@
