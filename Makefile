# `make demo` and `make test` are all that a newcomer needs; both set up what they use.
SHELL := bash
.DEFAULT_GOAL := help
PY := .venv/bin/python

.PHONY: help demo docs test suite test-slow check stack stack-down bench sim lock runtime dev clean

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

test: dev ## everything, on real Kafka and ZooKeeper servers that it brings itself (needs a JDK 17+ and Maven)
	@$(PY) -m stack jars
	@.venv/bin/loadmanager history jars
	@$(MAKE) --no-print-directory -j 2 check suite

suite: dev # beside `check`, which keeps one core only busy; make test WORKERS=4 where there are more cores
	$(PY) -m pytest -n $(or $(WORKERS),2) --dist loadgroup $(ARGS)

test-slow: dev ## what takes minutes: the ingest killed ten times on a real Kafka, and advice that makes a real cluster more even
	@$(PY) -m stack jars
	@.venv/bin/loadmanager history jars
	$(PY) -m pytest -m slow $(ARGS)

stack: dev ## Kafka and ZooKeeper on free loopback ports, data under .stack/
	@$(PY) -m stack up

stack-down: ## stop just those
	@$(PY) -m stack down

bench: dev ## the figures of docs/benchmarks.md, one JSON line each
	@$(PY) -m bench $(ARGS)

sim: dev ## SEEDS simulated clusters with every fault: make sim SEEDS=5000
	@.venv/bin/loadmanager sim --count $(or $(SEEDS),1000) --lines 300 $(ARGS)

lock: ## write requirements/*.lock anew from pyproject.toml
	@tools/lock.sh

docs: dev ## the site of the documentation, in build/site
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=.:api $(PY) -m mkdocs build --strict -q

clean: ## remove the environment and everything that was built
	rm -rf .venv .stack build dist *.egg-info
