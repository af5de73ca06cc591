# `make demo` and `make test` need Python 3.11+ with its headers, and nothing else: they set up .venv
# themselves, and compile the kernels beside their sources. Without a C compiler on the machine they
# use the one in the PyPI package ziglang.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.ready
BUILT := .venv/.built
AZURITE := .venv/.azurite
FRAMEWORKS := $(if $(NEXT),.venv-next,.venv-frameworks)
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
KERNELS := $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
KERNEL_TESTS = $(shell grep -rl --include='*.py' 'pytest.mark.kernels' tests)
MODULES := $(subst /,.,$(patsubst src/%.pyx,%,$(filter %.pyx,$(KERNELS))))

.PHONY: demo test test-frameworks oracle quick bench wheels fuzz lint lint-sources lint-stubs format debug sanitize sanitize-threads clean

demo: $(BUILT)
	$(BIN)/millstream demo

# Status 1 means that tests failed: they run once more, alone. If all pass now, they are listed under
# "flaky", and this succeeds. The cache is cleared, as it may name what failed in earlier runs.
test: lint $(AZURITE)
	$(RERUN) --cache-clear -n 2 --dist worksteal || { test $$? -eq 1 && \
		$(RERUN) --last-failed --last-failed-no-failures none -n 0; }

# Tests start many processes: with bytecode left behind, they need not compile our modules each.
RERUN = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -p tests.helpers.rerun

# Trainers that are too large for `make test`, in an environment of their own. With NEXT=1, their
# newest releases instead of those in constraints.txt: run it before you allow a new one.
test-frameworks: $(BUILT) $(FRAMEWORKS)/.ready
	PYTHONDONTWRITEBYTECODE= $(FRAMEWORKS)/bin/pytest -n 2 --dist worksteal tests/integrations \
		$(if $(NEXT),-k 'not versions')

# Thousands of small random cases, against what they gave when it was recorded: see tests/oracle.
oracle: $(BUILT)
	$(BIN)/python -m tests.oracle

# What one runs after every change: all layers, without what is slow or starts processes.
quick: $(BUILT)
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n 2 --dist worksteal \
		-m "not slow and not process and not gpu"

bench: $(BUILT)
	$(BIN)/python -m benchmarks

# For Linux on x86-64 and aarch64, into dist/; tested with each Python from 3.11 on that is on PATH.
wheels: $(SETUP)
	$(INSTALL) --group wheels
	$(BIN)/python -m wheels

# Two minutes of mutated files; ends at the first that is not refused or read as it should be.
fuzz: $(BUILT)
	$(INSTALL) atheris
	$(BIN)/python tests/attacks/fuzz.py -max_total_time=120

# Two at a time: each runs on one core. cython-lint finds its pycodestyle by PATH.
lint: $(BUILT)
	$(MAKE) --no-print-directory --jobs=2 --output-sync lint-sources lint-stubs

lint-sources:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint src
	$(BIN)/mypy

lint-stubs:
	$(BIN)/stubtest --concise --ignore-disjoint-bases --allowlist stubtest.txt \
		--ignore-unused-allowlist $(MODULES)

# The kernels' tests with bounds checks and asserts.
debug: $(SETUP)
	$(call build,debug)
	PYTHONPATH=build/debug/lib $(BIN)/python -m pytest -q -n 2 $(KERNEL_TESTS)

# The kernels' tests, the attacks and ten minutes of mutated files under AddressSanitizer and
# UndefinedBehaviorSanitizer, which end the process at a report; needs gcc.
sanitize: $(SETUP)
	$(call build,address)
	$(call sanitized,address,asan) -m pytest -q -n 2 --timeout 600 $(KERNEL_TESTS) tests/attacks
	$(call sanitized,address,asan) tests/attacks/mutate.py 600

# The prefetching tests under ThreadSanitizer; needs gcc.
sanitize-threads: $(SETUP)
	$(call build,thread)
	$(call sanitized,thread,tsan) -m pytest -q -p no:xdist --timeout 600 \
		tests/load/test_step_queue.py tests/load/test_loader.py

# A build of its own, not beside the sources.
build = MILLSTREAM_BUILD=$(1) $(BIN)/python setup.py --quiet build --build-base build/$(1) \
	--build-lib build/$(1)/lib
# Python with a sanitizer loaded before all else; libstdc++ too, or exceptions of others are lost.
# Python's own allocator would hide what lies beside an object.
sanitized = LD_PRELOAD="$$(gcc -print-file-name=lib$(2).so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	TSAN_OPTIONS=halt_on_error=1 \
	PYTHONMALLOC=malloc PYTHONPATH=build/$(1)/lib $(BIN)/python

# Also writes docs/files.md, the index of the source files.
format: $(SETUP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m tests.helpers.file_index

clean:
	rm -rf .venv .venv-frameworks .venv-next build dist demo-data bench-data .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src -name '*.so' -delete

# torch comes first and by its exact version, so that nothing else chooses a build of it.
$(SETUP): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(INSTALL) --group dev
	command -v cc || command -v gcc || command -v clang || $(INSTALL) ziglang
	$(INSTALL) --no-build-isolation --editable '.[torch,text,ray,remote]'
	touch $@

# An emulator of Azure's blob service. Without npm, its tests are skipped.
$(AZURITE): $(SETUP)
	! command -v npm || npm install --silent --no-audit --no-fund --prefix .venv azurite@3.35.0
	touch $@

# Two demand what no test needs, and other versions than the rest: litdata torchvision, torchtitan an
# old datasets.
$(FRAMEWORKS)/.ready: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(FRAMEWORKS)
	grep $(if $(NEXT),'^torch==','') constraints.txt > $(FRAMEWORKS)/constraints.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(FRAMEWORKS)/bin/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint $(FRAMEWORKS)/constraints.txt \
		--group dev --group frameworks
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint $(FRAMEWORKS)/constraints.txt \
		--no-deps --group frameworks-alone
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint $(FRAMEWORKS)/constraints.txt \
		--no-build-isolation --editable '.[torch,text,remote]'
	touch $@

$(BUILT): $(SETUP) setup.py $(KERNELS)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@
