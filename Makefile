# make demo: train a private model.   make test: everything CI checks.   make help: the rest.

UV_VERSION := 0.13.8
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
BIN := .venv/bin
export UV_PYTHON_DOWNLOADS ?= never

.PHONY: help venv demo test lint types imports check bench bench-secagg fuzz clean

help:
	@echo "make demo    train GDPFed+ on the bundled digits in simulation, with its privacy plan"
	@echo "make test    linters, types, import contracts and all tests, one real flwr run included"
	@echo "make bench   secure aggregation on, off, and Flower's echo, side by side"
	@echo "make bench-secagg   secure aggregation against its cipher and Flower's SecAgg+"
	@echo "make fuzz    a million damaged messages into every decoder of secagg"
	@echo "make venv    only make .venv from uv.lock"
	@echo "make clean   remove everything that make made, except runs/"

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

venv: .venv/.made

.venv/.made: pyproject.toml uv.lock | $(filter .uv/bin/uv,$(UV))
	$(UV) sync --frozen --quiet
	@touch $@

demo: venv
	$(BIN)/gdpfed run dataset=digits method=gdpfed_plus $(OVERRIDES)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

imports: venv
	$(BIN)/lint-imports

check: lint types imports

# Two at a time, a file on one of them; tests/conftest.py puts the longest first.
test: check
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

bench: venv
	$(BIN)/python benchmarks/secagg_overhead.py

bench-secagg: venv
	$(BIN)/python benchmarks/secagg_bench.py

fuzz: venv
	SECAGG_FUZZ_INPUTS=70000 $(BIN)/pytest tests/secagg/test_fuzz.py

clean:
	rm -rf .venv .uv .flwr .hypothesis .mypy_cache .ruff_cache .import_linter_cache
