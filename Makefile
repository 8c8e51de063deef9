# Every target does its own set-up, in .venv. PYTHON=... chooses the Python (3.11 or newer) it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two cores are enough to drive; more workers than cores only fight for them.
JOBS ?= 2
SOURCES := $(shell find csrc src -name '*.cc' -o -name '*.h' -o -name '*.py' 2>/dev/null) CMakeLists.txt pyproject.toml

.PHONY: demo test test-aot test-cpp grid lint format build python bench clean

$(VENV)/.ready: requirements-dev.txt requirements-nodeps.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "torch_tpu needs Python 3.11 or newer; say make PYTHON=..." >&2; exit 1; }
	@command -v c++ >/dev/null || { echo "torch_tpu needs a C++20 compiler (g++ 12 or newer, or clang 16)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the requirements into $(VENV)" >&2
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt >&2
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -r requirements-nodeps.txt >&2
	@touch $@

# The build folder stays, so that an edit rebuilds one file.
$(VENV)/.built: $(VENV)/.ready $(SOURCES)
	@echo "building torch_tpu" >&2
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install -q --disable-pip-version-check \
		--no-build-isolation --no-deps --force-reinstall . >&2
	@touch $@

build: $(VENV)/.built

python: $(VENV)/.built
	@echo $(CURDIR)/$(BIN)/python

demo: $(VENV)/.built
	@$(BIN)/python examples/demo.py

test: $(VENV)/.built test-cpp
	@$(BIN)/python -m pytest tests -n $(JOBS) --dist loadgroup

# Compiles the programs of every operator entry and dtype for TPU topologies; verdicts are kept for the next run.
test-aot: $(VENV)/.built
	@TORCH_TPU_TEST_AOT=1 $(BIN)/python -m pytest tests/test_aot_operators.py -q -p no:xdist

# The C++ layers below PyTorch, each test on both CPU plugins where it takes one.
test-cpp: $(VENV)/.ready
	@$(BIN)/cmake -S . -B build/cpp -G Ninja -DTORCH_TPU_CPP_TESTS=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
		-DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja >/dev/null
	@$(BIN)/cmake --build build/cpp --target cpp_tests -j $(JOBS) >build/cpp/log 2>&1 || { cat build/cpp/log; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/run_cpp_tests.sh build/cpp

# PyTorch's whole grid, in processes of their own, and the table of it. JOBS=1 beside other work.
grid: $(VENV)/.built
	@TORCH_TPU_CPU_FALLBACK=allow $(BIN)/python tools/grid.py --jobs $(JOBS) --table docs/operators.md

lint: $(VENV)/.ready
	@$(BIN)/python tools/check_includes.py
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $$(git ls-files 'csrc/*.cc' 'csrc/*.h' 'tests/*.cc')

format: $(VENV)/.ready
	@$(BIN)/python -m ruff check --fix -q . || true
	@$(BIN)/python -m ruff format -q .
	@$(BIN)/clang-format -i $$(git ls-files 'csrc/*.cc' 'csrc/*.h' 'tests/*.cc')

bench: $(VENV)/.built
	@$(BIN)/python benchmarks/compare.py

clean:
	rm -rf build $(VENV)
