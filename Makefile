# Each target is one command and does its own set-up. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo check test soak e2e lint types format lock crds docs observability bench bench-broadcast bench-diloco bench-inference bench-ledger bench-operator bench-prime bench-recovery bench-toploc bench-trainer bench-trust bench-vineppo bench-workers reproduce rehearse golden gpu gpu-wheels tools images base-image setup clean bench-release release

PYTHON := .venv/bin/python
# Two threads of torch or vLLM on two shared cores are slower than one.
export OMP_NUM_THREADS ?= 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## train a tiny model on this machine: the whole loop, some five minutes
	.venv/bin/shoal up -f examples/arithmetic/trainingrun.yaml

check: setup ## lint, types, import rules, prose and a fast tier of tests; some three minutes
	@tools/test.sh --fast

test: setup ## lint, types and tests; what CI runs
	@tools/test.sh -m "not soak"

soak: setup ## long churn, fuzzing and whole suites, those on a cluster too; not part of `make test`
	@tools/setup.sh --with docker-registry:docker-registry skopeo:skopeo
	@tools/build.sh azurite >/dev/null || echo "Azurite is not built: the tests of Azure cannot run"
	@status=0; tools/test.sh --only-tests -m soak --timeout=7200 || status=1; tools/e2e.sh kind || status=1; exit $$status

e2e: setup ## real pods on a real cluster: a node on this machine, `E2E=kind`, or `E2E="--kubeconfig FILE"`; see e2e/README.md
	@tools/e2e.sh $(E2E)

lint: setup ## ruff, the import rules and the prose linter
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/lint-imports
	$(PYTHON) -m tools.prose

types: setup ## mypy
	.venv/bin/mypy

format: setup ## let ruff order imports and lay out the code
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

lock: ## resolve the Python packages anew into requirements/*.lock
	@tools/lock.sh

crds: setup ## write crds/, docs/reference.md and the chart's permissions from operator/shoal_operator
	$(PYTHON) -m tools.crds
	$(PYTHON) -m shoal_operator.install --permissions >charts/shoal/files/permissions.yaml

observability: setup ## write docs/metrics.md and the chart's Grafana dashboards from the metrics that the code declares
	$(PYTHON) -m tools.observability

docs: setup ## write the generated pages, and build the site into .cache/site with warnings as errors
	$(PYTHON) -m tools.docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "the site: $(PYTHON) -m http.server --directory .cache/site"

bench: setup ## run the benchmarks; each writes one JSON and one table
	@for program in benchmarks/*/run.py; do \
		test -f "$$program" || continue; echo "== $$program"; $(PYTHON) "$$program" || exit 1; done
	$(PYTHON) -m benchmarks.trainer
	$(PYTHON) -m benchmarks.rewards
	$(PYTHON) -m benchmarks.agents.reasoning_gym
	$(PYTHON) -m benchmarks.agents.verifiers_environments
	$(PYTHON) -m benchmarks.agents.tool_rise
	$(PYTHON) -m benchmarks.operator

bench-trainer: setup ## the trainer against TRL 1.16.0, on this machine's CPU or GPU
	$(PYTHON) -m benchmarks.trainer

gpu: ## on a machine with an NVIDIA GPU, without `make setup` too: ten minutes of tests and figures; benchmarks/results/gpu.json
	@tools/gpu.sh $(ARGS)

gpu-wheels: ## fetch the Python packages that `make gpu` needs on a machine without a network
	@tools/gpu.sh --fetch-wheels

bench-inference: setup ## what proofs cost an engine, swaps, from a new version to its first token; some five minutes
	$(PYTHON) -m benchmarks.inference

bench-broadcast: setup ## weights over shaped links, beside shardcast, curl and aria2; needs root, some twenty minutes
	@tools/setup.sh --with aria2c:aria2 curl:curl ip:iproute2
	$(PYTHON) -m benchmarks.broadcast

bench-diloco: setup ## islands against data parallel training: losses, bytes and compute share on a shaped, delayed link, deaths; needs root, some thirteen minutes
	@tools/setup.sh --with ip:iproute2
	$(PYTHON) -m benchmarks.diloco

rehearse: setup ## runs of the paper's size without GPUs, beside their plans: benchmarks/results/size.json; some two hours on an idle machine
	$(PYTHON) -m benchmarks.rehearse

reproduce: setup ## the paper's experiments on a tiny model; runs what is missing, some 70 minutes in all
	nice -n 19 $(PYTHON) -m benchmarks.reproduce

golden: setup ## make the golden values of TRL anew that tests compare with
	$$(tools/oracle.sh) -m benchmarks.trainer.make_golden
	$$(tools/oracle.sh) -m benchmarks.trainer.make_golden_sft

bench-trust: setup ## honest and dishonest workers before the validators: what lying and finding it costs; some half an hour
	$(PYTHON) -m benchmarks.trust

bench-prime: setup ## PRIME from a plain base and after a warm start: steps to one pass@1, the reward model's cost; some ten minutes a seed
	nice -n 19 $(PYTHON) -m benchmarks.prime

bench-vineppo: setup ## VinePPO against GRPO from one base model, by steps and by sampled tokens; some five minutes of one core
	nice -n 19 $(PYTHON) -m benchmarks.vineppo

bench-workers: setup ## rollout workers' scheduling on engines that only have a clock: benchmarks/results/workers.json; some ten minutes
	nice -n 19 $(PYTHON) -m benchmarks.workers

bench-protocol: setup ## ten thousand heartbeating nodes, a thousand that come and go: benchmarks/results/protocol.json; some twelve minutes
	$(PYTHON) -m benchmarks.protocol

bench-recovery: setup ## what recovery reads of the store after a million files: benchmarks/results/size.json; some seven minutes
	$(PYTHON) -m benchmarks.recovery

bench-ledger: setup ## `shoal ledger verify` over a million entries: benchmarks/results/size.json; some half an hour
	$(PYTHON) -m benchmarks.ledger

bench-release: setup ## parts that were promised a GPU and see none, the size of the CLI alone, the error of a node's caps: benchmarks/results/release.json; some five minutes
	$(PYTHON) -m benchmarks.release
	$(PYTHON) -m benchmarks.release.caps

bench-toploc: setup ## proofs a chunk beside the published library, which is built from source the first time
	$(PYTHON) -m benchmarks.toploc

bench-operator: setup ## 1,000 pools on a real API server: benchmarks/results/operator.json
	@tools/build.sh kubernetes >/dev/null
	$(PYTHON) -m benchmarks.operator

tools: ## build the Go programs that tests and checks need (Vale, MinIO, versitygw, Azurite, Helm, a Kubernetes control plane) into the user's cache
	@tools/build.sh vale
	@tools/build.sh minio
	@tools/build.sh versitygw
	@tools/build.sh azurite
	@tools/build.sh helm
	@tools/build.sh kubernetes

images: ## build the images of images/ with buildah, podman or docker (ROLES="operator relay": some; ARCH=arm64: for other machines)
	@tools/images.sh $(ROLES)

base-image: ## a base for them from Debian's packages, for machines without a container registry
	@tools/images.sh --base

release: setup ## make, publish and sign a release: VERSION=1.2.3 REGISTRY=host KEY=cosign.key, ARGS="--dry-run" and others (docs/adr/0098)
	@$(PYTHON) -m tools.release "$(VERSION)" --registry "$(REGISTRY)" --key "$(KEY)" $(ARGS)

setup: ## system packages and .venv; every other target does this by itself (VARIANT=cuda: for NVIDIA's GPUs)
	@tools/setup.sh

clean: ## remove .venv and caches of this checkout; runs/ and the machine stay as they are
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find operator workloads tests -name __pycache__ -type d -prune -exec rm -rf {} +
