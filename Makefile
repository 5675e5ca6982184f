# make demo: train a private model.   make test: everything CI checks.   make help: the rest.

UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
BIN := .venv/bin
export UV_PYTHON_DOWNLOADS ?= never
# Flower starts a process for each message to each node: without compiled files each would compile us anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo dist docs paper sbom test lint types imports check test-faults test-compose test-defences test-drills test-flower bench pfl-environment opacus-environment deploy-local fuzz clean

help:
	@echo "make demo    train GDPFed* on the bundled digits in simulation, with its privacy plan"
	@echo "make test    linters, types, import contracts and all tests, one real flwr run included"
	@echo "make bench   the same as make bench-overhead: secure aggregation on, off, and Flower's echo, side by side"
	@echo "make bench-NAME     one benchmark, python -m benchmarks.NAME; OPTIONS=\"--write DOC\" puts its table into DOC"
	@echo "make bench-all      every table of the pages on speed again; needs hours and a quiet machine"
	@echo "make bench-smoke    every benchmark at tiny size, rivals included: does each still run?"
	@echo "make bench-secagg   secure aggregation against its cipher and Flower's SecAgg+"
	@echo "make bench-exchanges   seconds a round of six nodes: keys agreed ahead, four exchanges, Flower's SecAgg+"
	@echo "make bench-backhaul   bytes between edges and cloud: one flat federation, and layers of them"
	@echo "make bench-simulation   gdpfed simulate against flwr run, apple's pfl, a loop and the machine"
	@echo "make bench-machines   a round over 1, 2 and 4 workers, alone and on machines of a Ray cluster"
	@echo "make bench-records   DP-SGD on records against Opacus and plain SGD; a cohort out of few parties or of many"
	@echo "make bench-load   a hundred nodes, twenty rounds, one in ten gone from each: right sums, time, memory"
	@echo "make deploy-local   a federation of six separate nodes on loopback, with TLS and node keys, trains once"
	@echo "                    EDGES=2: a cloud and two edges with federations of their own; NODES=6 of them all"
	@echo "make test-faults    the slow tests too: nodes and server killed in the middle of a run"
	@echo "make test-compose   containers for real, where a Docker engine is; OPTIONS=--stand-ins without a registry"
	@echo "make test-defences  each fault's test again without the defence that it is there for: it must fail"
	@echo "make test-flower    apps of users with FLWR=1.42.0 and JAX, in build/flower, over the packages of .venv"
	@echo "make test-drills    docs/operations.md on processes, its own commands: upgrade, backup, lost folders, ..."
	@echo "make sbom    sbom.cdx.json: every package of uv.lock that the app needs, as CycloneDX 1.5"
	@echo "make dist    wheel and sdist of the published project in dist/, with a core that needs no PyTorch"
	@echo "make docs    the documents as a site in site/, with reference pages; links are checked"
	@echo "make paper   paper/build/paper.pdf, whose figures are read from the tables of the documents"
	@echo "make fuzz    a million damaged messages into each decoder of secagg, a million over Flower; 1,000 lying servers"
	@echo "make venv    only make .venv from uv.lock; TORCH_INDEX=URL takes PyTorch from there, such as a CPU build"
	@echo "make clean   remove everything that make made, except runs/"

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement deploy/uv.txt

venv: .venv/.made

# PyTorch's CPU builds are in an index of their own, by which uv.lock does not go: it has their version alone.
MADE_FROM = $(shell cat .venv/.torch-index 2>/dev/null)
TORCH_INDEX ?= $(MADE_FROM)
ifneq ($(if $(wildcard .venv/.installed),$(TORCH_INDEX)),$(if $(wildcard .venv/.installed),$(MADE_FROM)))
$(error TORCH_INDEX=$(TORCH_INDEX): .venv was made $(if $(MADE_FROM),from $(MADE_FROM),without it); rm -r .venv first)
endif
TORCH = $(shell sed -nE '/^name = "(torch|torchvision)"$$/{N;s/name = "(.+)"\nversion = "(.+)"/\1==\2/p}' uv.lock)
OF_CUDA = $(shell sed -nE 's/^name = "((nvidia|cuda)-.+|triton|torch|torchvision)"$$/--no-install-package \1/p' uv.lock)
SYNC = $(UV) sync --frozen --quiet --group dev $(if $(TORCH_INDEX),--inexact $(OF_CUDA))

.venv/.installed: pyproject.toml uv.lock | $(filter .uv/bin/uv,$(UV))
	$(SYNC)
ifneq ($(TORCH_INDEX),)
	$(UV) pip install --quiet --no-deps --index-url $(TORCH_INDEX) $(TORCH)
	@echo $(TORCH_INDEX) > .venv/.torch-index
endif
	@touch $@

.venv/.made: .venv/.installed
	$(SYNC) --compile-bytecode
	@touch $@

demo: venv
	$(BIN)/gdpfed run dataset=digits method=gdpfed_star $(OVERRIDES)

docs: venv
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict --quiet

# Typst sets the paper; nothing else needs it.
paper: venv
	$(UV) pip install --quiet --python $(BIN)/python 'typst>=0.15,<0.16'
	$(BIN)/python -m paper.build

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/mypy

imports: .venv/.installed
	$(BIN)/lint-imports

sbom: venv
	@$(UV) export --quiet --frozen --no-dev --no-emit-project --format cyclonedx1.5 --output-file sbom.cdx.json

# What is published: its sources are written to build/wheel, since it needs less than the app does.
dist: venv
	$(BIN)/python -m release build/wheel
	$(UV) build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist build/wheel

check: lint types imports

FEDERATIONS = tests/deploy tests/launch

# Lines and imports are checked first, types while the tests run. Two processes of one thread run them, each with
# whole files; tests/conftest.py says which come first. A third runs those of real federations, which wait more
# than they work. What they import is compiled as it is needed, which is a part.
test: .venv/.installed
	$(MAKE) --jobs=3 check federations others

federations: .venv/.installed | lint imports
	@mkdir -p build
	@$(BIN)/pytest $(FEDERATIONS) > build/federations.txt 2>&1; ended=$$?; cat build/federations.txt; exit $$ended

others: .venv/.installed | lint imports
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(FEDERATIONS:%=--ignore %)

test-faults: venv
	$(BIN)/pytest -m "slow or not slow" --timeout 900 tests/deploy tests/client_app/test_plain.py tests/flower

test-compose: venv
	$(BIN)/python -m tests.deploy.containers $(OPTIONS)

test-defences: venv
	$(BIN)/python -m tests.deploy.defences

# Neither is in uv.lock: Flower's next version, and a framework of users. Their modules come before those of .venv.
FLWR ?= 1.42.0
test-flower: venv
	$(UV) venv --quiet --clear --python $(BIN)/python build/flower
	$(UV) pip install --quiet --python build/flower --no-deps flwr==$(FLWR) jax jaxlib ml_dtypes opt_einsum
	for site in build/flower/lib/python3.*/site-packages; do ls -d $(CURDIR)/.venv/lib/python3.*/site-packages > $$site/venv.pth; done
	build/flower/bin/python -m pytest tests/flower

test-drills: venv
	$(BIN)/python -m tests.deploy.drills $(OPTIONS)

bench: bench-overhead

bench-%: venv
	$(BIN)/python -m benchmarks.$* $(OPTIONS)

bench-simulation: pfl-environment

bench-records: opacus-environment

bench-smoke bench-all: pfl-environment opacus-environment

pfl-environment: venv
	$(UV) sync --frozen --quiet --project benchmarks/simulation/pfl_environment

deploy-local: venv
	$(BIN)/python -m deploy.$(if $(EDGES),layers --edges $(EDGES) $(if $(NODES),--nodes $(NODES)),local) $(OVERRIDES)

opacus-environment: venv
	$(UV) sync --frozen --quiet --project benchmarks/records/opacus_environment

fuzz: venv
	SECAGG_FUZZ_INPUTS=70000 $(BIN)/pytest tests/secagg/test_fuzz.py
	FLOWER_FUZZ_MESSAGES=500000 $(BIN)/pytest --timeout 0 tests/server_app/test_damaged_messages.py
	LYING_SERVERS=1000 $(BIN)/pytest tests/federation/node/test_lying_server.py

clean:
	rm -rf .venv benchmarks/simulation/pfl_environment/.venv benchmarks/records/opacus_environment/.venv .uv .flwr .hypothesis .mypy_cache .ruff_cache .import_linter_cache site
