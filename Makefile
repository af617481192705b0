# Each target is one command and does its own set-up. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test soak lint types format lock crds bench tools setup clean

PYTHON := .venv/bin/python
# Two threads of torch or vLLM on two shared cores are slower than one.
export OMP_NUM_THREADS ?= 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## train a tiny model on this machine: the whole loop, some five minutes
	.venv/bin/shoal up -f examples/arithmetic/trainingrun.yaml

test: setup ## lint, types and tests; what CI runs
	@tools/test.sh -m "not soak"

soak: setup ## long churn, fuzzing and whole suites; not part of `make test`
	@tools/test.sh --only-tests -m soak --timeout=7200

lint: setup ## ruff and the import rules
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/lint-imports

types: setup ## mypy
	.venv/bin/mypy operator/shoal_operator workloads/shoal

format: setup ## let ruff order imports and lay out the code
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

lock: ## resolve the Python packages anew into requirements/*.lock
	@tools/lock.sh

crds: setup ## write crds/ from operator/shoal_operator/api
	$(PYTHON) -m shoal_operator.api.crd crds/

bench: setup ## run the benchmarks; each writes one JSON and one table
	@for program in benchmarks/*/run.py benchmarks/*.py; do \
		test -f "$$program" || continue; echo "== $$program"; $(PYTHON) "$$program" || exit 1; done

tools: ## build the Go programs that tests need (MinIO) into the user's cache
	@tools/build.sh minio

setup: ## system packages and .venv; every other target does this by itself
	@tools/setup.sh

clean: ## remove .venv and caches of this checkout; runs/ and the machine stay as they are
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find operator workloads tests -name __pycache__ -type d -prune -exec rm -rf {} +
