# `make demo` and `make test` are all that a newcomer needs; both set up what they use.
SHELL := bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
UNIT := -m "not (slow or kafka or zookeeper or postgresql or redis or spark)" $(addprefix --ignore=tests/,history \
  integration simulation/test_seeds.py api/test_load_history_cli.py test_tidy.py test_wheel.py)

.PHONY: help demo docs test suite test-guarded test-slow test-collector test-kubernetes test-lowest test-newest check stack stack-down bench sim fuzz lock wheel runtime dev clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

runtime:
	@tools/environment.sh runtime

dev:
	@tools/environment.sh dev

demo: runtime ## three brokers share bundles under traffic; one is killed, one drained; 0 failed requests
	@.venv/bin/loadmanager demo $(ARGS)

check: dev ## style, types, layering
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/lint-imports
	.venv/bin/pyright
	.venv/bin/pyright -p tests

test: dev ## everything, on real Kafka and ZooKeeper servers that it brings itself (needs a JDK 17+ and Maven)
	@$(PY) -m stack jars
	@.venv/bin/loadmanager history jars
	@$(MAKE) --no-print-directory -j 2 check suite

suite: dev # beside `check`, which keeps one core only busy; make test WORKERS=4 where there are more cores
	$(PY) -m pytest -n $(or $(WORKERS),2) --dist loadgroup --guarded changed $(ARGS)

test-guarded: dev ## the tests that take minutes and guard what seldom changes; a run that passes writes that down
	@$(PY) -m stack jars
	@.venv/bin/loadmanager history jars
	$(PY) -m pytest -n $(or $(WORKERS),2) --dist loadgroup --guarded only $(ARGS)

test-slow: dev ## what takes minutes: the ingest killed ten times on a real Kafka, and on S3 (needs Go); advice that makes a real cluster more even
	@$(PY) -m stack jars
	@.venv/bin/loadmanager history jars
	$(PY) -m pytest -m slow $(ARGS)

test-collector: dev ## traces sent to a real OpenTelemetry Collector, built from its Go modules (needs Go)
	$(PY) -m pytest tests/observability/real_collector.py $(ARGS)

test-kubernetes: dev ## the chart on a real control plane, built from its Go modules; pods are processes (needs Go, root)
	@$(PY) -m stack jars
	$(PY) -m pytest -n 0 --guarded all tests/kubernetes $(ARGS)

test-lowest: ## the unit tests on the oldest versions that pyproject.toml allows: make test-lowest PYTHON=python3.12
test-newest: ## the unit tests on the newest, under another Python: make test-newest PYTHON=python3.13
test-lowest test-newest: test-%:
	@tools/environment.sh $(if $(filter lowest,$*),lowest,dev) .venvs/$*-$(notdir $(PYTHON)) $(PYTHON)
	.venvs/$*-$(notdir $(PYTHON))/bin/python -m pytest $(UNIT) $(ARGS)

stack: dev ## Kafka and ZooKeeper on free loopback ports, data under .stack/
	@$(PY) -m stack up

stack-down: ## stop just those
	@$(PY) -m stack down

bench: dev ## the figures of docs/benchmarks.md, one JSON line each
	@$(PY) -m bench $(ARGS)

sim: dev ## SEEDS simulated clusters with every fault: make sim SEEDS=5000
	@$(PY) -m loadmanager.simulation --count $(or $(SEEDS),1000) --lines 300 $(ARGS)

fuzz: dev ## EXAMPLES requests for each route and phase, each time others: make fuzz EXAMPLES=1000; SEED= repeats a run
	FUZZ_EXAMPLES=$(or $(EXAMPLES),200) FUZZ_SEED=$(or $(SEED),$(shell date +%s)) \
	  $(PY) -m pytest -n 0 --guarded only tests/fuzz $(ARGS)

lock: ## write requirements/*.lock anew from pyproject.toml
	@tools/lock.sh $(ARGS)

wheel: ## dist/loadmanager-*.whl, to install elsewhere: docs/operations.md
	@rm -rf build
	@python3 -m pip wheel -q --no-deps -w dist .

docs: dev ## the site of the documentation, in build/site
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=.:api $(PY) -m mkdocs build --strict -q

clean: ## remove the environment and everything that was built
	rm -rf .venv .venvs .stack build dist *.egg-info
