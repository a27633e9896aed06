# Everything a person or CI does with this checkout. The targets do their own set-up: see scripts/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# The one folder for what is kept between runs: cargo's target folder, virtual environments, libclang where needed.
export WAL2DELTA_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/wal2delta
export CARGO_TARGET_DIR ?= $(WAL2DELTA_CACHE)/target
# For the demo, which tells how long it took from the command to the first rows.
export WAL2DELTA_STARTED := $(shell date +%s)

# Shows a command and runs it: $(run); run COMMAND …
run = run() { echo "+ $$*" >&2; "$$@"; }
# Sets the environment of cargo for the PostgreSQL whose pg_config follows: $(call cargo-for,PG_CONFIG)
cargo-for = $(run); env=$$(scripts/build-deps); eval "$$env"; export PGRX_PG_CONFIG_PATH=$(1)

.PHONY: help
help: ## these lines
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

.PHONY: demo
demo: ## a throw-away server, a shop's tables and their history in Delta; LAKE=s3: in a bucket; KEEP=1 leaves it running
	@pg_config=$$(scripts/postgres17 --own)
	$(call cargo-for,$$pg_config)
	run cargo build --release --locked
	run scripts/install "$$pg_config"
	python=$$(scripts/venv venv-demo$(if $(LAKE),-$(LAKE)) scripts/demo$(if $(LAKE),-$(LAKE))-requirements.txt)
	run env LAKE=$(LAKE) "$$python" scripts/demo "$$pg_config"

.PHONY: test
test: ## unit tests, SQL tests, whole-cluster tests; PYTEST_ARGS='-k name' is passed to pytest
	@pg_config=$$(scripts/postgres17 --own --extensions)
	$(call cargo-for,$$pg_config)
	run cargo build --release --locked
	run cargo build --release --locked --package wal2delta-faults
	run cargo test --release --locked --lib
	run scripts/install "$$pg_config"
	run scripts/install --faults "$$pg_config"
	export WAL2DELTA_PG_CONFIG=$$pg_config
	python=$$(scripts/venv venv tests/requirements.txt)
	if [[ -x pg_test/run ]]; then run pg_test/run; fi
	export AZURITE=$$(scripts/azurite)
	export UNITY_SERVER=$$(scripts/unity-server)
	export SPARK_HOME=$$(scripts/spark)
	export MINIO=$$(scripts/minio)
	run "$$python" -m pytest tests $(PYTEST_ARGS)

.PHONY: torture
torture: ## random load and random faults for SECONDS (default 600); SEED=… repeats a run
	@pg_config=$$(scripts/postgres17 --own --extensions)
	$(call cargo-for,$$pg_config)
	run cargo build --release --locked
	run cargo build --release --locked --package wal2delta-faults
	run scripts/install "$$pg_config"
	run scripts/install --faults "$$pg_config"
	export WAL2DELTA_PG_CONFIG=$$pg_config
	python=$$(scripts/venv venv tests/requirements.txt)
	run "$$python" -m pytest -s -o faulthandler_timeout=0 tests/test_torture.py --torture-seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) $(PYTEST_ARGS)

.PHONY: build
build: ## the release build, for PG_CONFIG or the PostgreSQL 17 that demo and tests use
	@pg_config="$(PG_CONFIG)"
	$(call cargo-for,$${pg_config:-$$(scripts/postgres17 --own)})
	run cargo build --release --locked

.PHONY: install
install: ## the release build into a PostgreSQL 17: PG_CONFIG=/path/to/pg_config [SUDO=sudo] [DESTDIR=...]
	@if [[ -z "$(PG_CONFIG)" ]]; then
	  echo 'install: say into which PostgreSQL 17: make install PG_CONFIG=/path/to/pg_config' >&2; exit 2
	fi
	pg_config=$$(command -v "$(PG_CONFIG)" || true)
	if [[ "$$("$${pg_config:-false}" --version)" != "PostgreSQL 17"* ]]; then
	  echo 'install: PG_CONFIG=$(PG_CONFIG) is not the pg_config of a PostgreSQL 17' >&2; exit 2
	fi
	$(call cargo-for,$$pg_config)
	run cargo build --release --locked
	run scripts/install "$$pg_config"

.PHONY: lint
lint: ## format and clippy, warnings are errors
	@for part in fmt clippy; do
	  cargo $$part --version >/dev/null || { echo "lint: cargo $$part is missing (rustup component add rustfmt clippy)" >&2; exit 2; }
	done
	cargo fmt --check
	pg_config=$$(scripts/postgres17 --own)
	$(call cargo-for,$$pg_config)
	run cargo clippy --release --locked --workspace --all-targets -- -D warnings

.PHONY: bench
bench: ## measures, some hours, into docs/performance.md; BENCH_ARGS='--only compare --runs 3' is passed on
	@pg_config=$$(scripts/postgres17 --own --extensions)
	$(call cargo-for,$$pg_config)
	run cargo build --release --locked
	run scripts/install "$$pg_config"
	export WAL2DELTA_PG_CONFIG=$$pg_config
	python=$$(scripts/venv venv-bench tests/bench/requirements.txt)
	cd tests
	run "$$python" -m bench --output ../docs/performance.json $(BENCH_ARGS)
	run "$$python" -m bench.page ../docs/performance.json ../docs/performance.md

.PHONY: env
env: ## the lines that make a shell ready for cargo by hand: eval "$(make env)"
	@pg_config=$$(scripts/postgres17 --own)
	scripts/build-deps
	printf 'export %s=%q\n' CARGO_TARGET_DIR "$$CARGO_TARGET_DIR" PGRX_PG_CONFIG_PATH "$$pg_config"

.PHONY: clean
clean: ## removes what was built, the private PostgreSQL and the demo's data; the cache's virtual environments stay
	@rm -rf .postgres17 .demo
	cargo clean
