# `make demo` and `make test` are all that a newcomer needs; both set up what they use.
SHELL := bash
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE # else each process that a test starts compiles all that it imports
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
PARALLEL := -n $(or $(WORKERS),2) --dist loadgroup
UNIT := -m "not (slow or release or kafka or zookeeper or postgresql or redis or spark)" $(addprefix --ignore=tests/,\
  history integration)

.PHONY: help demo docs runtime dev dev-light test test-all test-release test-collector test-lowest test-newest stall \
  kafka-rounds mutation check style types types-of-tests layers stack stack-down bench sim fuzz lock wheel clean

help: ## this list
	@awk -F ':.*## |^## ' '/^## /{print "\n" $$2} /^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Use it
runtime:
	@tools/environment.sh runtime

demo: runtime ## three brokers share bundles under traffic; one is killed, one drained; 0 failed requests
	@.venv/bin/loadmanager demo $(ARGS)

wheel: ## dist/loadmanager-*.whl, to install elsewhere: docs/install.md
	@rm -rf build
	@python3 -m pip wheel -q --no-deps -w dist .

stack: dev ## Kafka and ZooKeeper on free loopback ports, data under .stack/
	@$(PY) -m stack up

stack-down: ## stop just those
	@$(PY) -m stack down

## Set up
dev: ## .venv with all that tests and checks need
	@tools/environment.sh dev

dev-light: ## .venv without Spark, browser and site: enough for the core's tests and for ruff
	@tools/environment.sh light

lock: ## write requirements/*.lock from pyproject.toml
	@tools/lock.sh $(ARGS)

clean: ## remove the environment and everything that was built
	rm -rf .venv .venvs .stack build dist *.egg-info

## Test: ARGS go to pytest, WORKERS=4 where there are more cores
test: dev ## the fast tests, on real Kafka and ZooKeeper servers that it brings itself (JDK 17+ and Maven)
	@$(PY) -m stack jars
	$(PYTEST) $(PARALLEL) $(ARGS)

test-all: dev jars ## the slow tests too: real processes, wheel, site, tutorial, demo, load history, 200 seeds
	$(PYTEST) $(PARALLEL) -m "not release" $(ARGS)

test-release: dev jars ## what a release needs: Kubernetes, fuzz, 1,000 seeds, S3, pulsar-admin, the ten kills (needs Go)
	$(PYTEST) $(PARALLEL) -m release $(ARGS)

check: ## style, types, layering
	@$(MAKE) --no-print-directory dev
	@$(MAKE) --no-print-directory -j 2 types types-of-tests style layers

## Test more
test-collector: dev ## traces sent to a real OpenTelemetry Collector, built from its Go modules (needs Go)
	$(PYTEST) tests/observability/real_collector.py $(ARGS)

test-lowest: ## the unit tests on the oldest versions that pyproject.toml allows: make test-lowest PYTHON=python3.12
test-newest: ## the unit tests on the newest, under another Python: make test-newest PYTHON=python3.13
test-lowest test-newest: test-%:
	@tools/environment.sh $(if $(filter lowest,$*),lowest,dev) .venvs/$*-$(notdir $(PYTHON)) $(PYTHON)
	.venvs/$*-$(notdir $(PYTHON))/bin/python -m pytest $(UNIT) $(ARGS)

stall: dev ## ROUNDS of the tests in ARGS while every process of theirs stops for 2 s at random, beside a load of 8
	@$(PY) -m tests.stall --rounds $(or $(ROUNDS),1) $(PARALLEL) $(ARGS)

kafka-rounds: dev ## open and close Kafka clients ROUNDS times while their Kafka stops and dies
	@$(PY) -m tests.statechannel.kafka_rounds --rounds $(or $(ROUNDS),500) $(ARGS)

mutation: dev ## mutate the law, the proofs, the leader, the groups and the fences; print the mutants that no test sees
	@$(PY) -m tests.mutation $(ARGS)

bench: dev ## the figures of bench/notebook, one JSON line each
	@$(PY) -m bench $(ARGS)

sim: dev ## SEEDS simulated clusters with every fault: make sim SEEDS=5000
	@$(PY) -m tests.simulator --count $(or $(SEEDS),1000) --lines 300 $(ARGS)

fuzz: dev ## EXAMPLES requests for each route and phase, each time others: make fuzz EXAMPLES=1000; SEED= repeats a run
	FUZZ_EXAMPLES=$(or $(EXAMPLES),200) FUZZ_SEED=$(or $(SEED),$(shell date +%s)) \
	  $(PY) -m pytest -n 0 -m release tests/fuzz $(ARGS)

docs: dev ## the site of the documentation, in build/site
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=.:api $(PY) -m mkdocs build --strict -q

jars: dev
	@$(PY) -m stack jars
	@.venv/bin/loadmanager history jars

style:
	.venv/bin/ruff format --check -q .
	.venv/bin/ruff check -q .

types:
	.venv/bin/pyright

types-of-tests:
	.venv/bin/pyright -p tests

layers:
	.venv/bin/lint-imports
