# `make demo` and `make test` need Python 3.11+ with its headers, and nothing else: they set up .venv
# themselves, and compile the kernels beside their sources. Without a C compiler on the machine they
# use the one in the PyPI package ziglang.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
BUILT := .venv/.built
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
KERNELS := $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
MODULES := $(subst /,.,$(patsubst src/%.pyx,%,$(filter %.pyx,$(KERNELS))))

.PHONY: demo test bench fuzz lint format debug sanitize sanitize-threads clean

demo: $(BUILT)
	$(BIN)/penstock demo

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

bench: $(BUILT)
	$(BIN)/python -m benchmarks

# Two minutes of mutated files; ends at the first that is not refused or read as it should be.
fuzz: $(BUILT)
	$(INSTALL) atheris
	$(BIN)/python tests/attacks/fuzz.py -max_total_time=120

# cython-lint finds its pycodestyle by PATH.
lint: $(BUILT)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint src
	$(BIN)/mypy
	$(BIN)/stubtest --concise --ignore-disjoint-bases --allowlist stubtest.txt \
		--ignore-unused-allowlist $(MODULES)

format: $(SETUP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build demo-data bench-data .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src -name '*.so' -delete

# torch comes first and by its exact version, so that nothing else chooses a build of it.
$(SETUP): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(INSTALL) --group dev
	command -v cc || command -v gcc || command -v clang || $(INSTALL) ziglang
	$(INSTALL) --no-build-isolation --editable '.[torch,text,ray]'
	touch $@

$(BUILT): $(SETUP) setup.py $(KERNELS)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@
