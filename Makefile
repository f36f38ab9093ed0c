# Two commands do everything on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python

.PHONY: help
help: ## Show what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s'|'

.PHONY: demo
demo: setup ## Start a cluster, train a tiny GPT on it, kill a pod, watch it come back
	@$(PY) -m demo

.PHONY: test
test: setup-trainer ## All tests: lint, unit, Megatron's own checks, real ranks, control plane, faults
	@scripts/test.sh

.PHONY: setup
setup: ## Make .venv (operator, CLI, local cluster, test tools)
	@scripts/setup.sh

.PHONY: setup-trainer
setup-trainer: ## The same, with torch and megatron-core for the trainer's tests
	@scripts/setup.sh trainer

.PHONY: cluster-up
cluster-up: setup ## Start the local two-node cluster with images, without the demo
	@$(PY) -m localcluster up
	@$(PY) -m localcluster images

.PHONY: cluster-down
cluster-down: ## Stop everything that was started; leaves no process, mount, cgroup, interface or rule
	@if [ -x $(PY) ]; then \
	  for profile in full control-plane; do $(PY) -m localcluster down --profile $$profile; done; fi

.PHONY: lint
lint: setup ## ruff and mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

.PHONY: crds
crds: setup ## Generate the CRD from the pydantic models
	@$(PY) -m megatron_operator.api.crd crds/megatronrecipes.yaml
	@cp crds/megatronrecipes.yaml charts/megatron-operator/files/
	@$(PY) -m megatron_operator.api.reference docs/recipe.md docs/operations.md

.PHONY: catalog-pages
catalog-pages: setup ## Write docs/catalog anew from the catalog's data
	@$(PY) scripts/catalog_pages.py

.PHONY: golden
golden: setup-trainer ## Rewrite golden files and public surfaces; review the diff
	@$(PY) -m pytest -q tests/unit --update-golden

.PHONY: bench-planner
bench-planner: setup ## Print the planner's step times against published ones, with their errors
	@$(PY) -m bench.planner

.PHONY: bench-goodput
bench-goodput: setup ## Print the goodput of a simulated run of 16,384 GPUs through 466 interruptions
	@$(PY) -m bench.goodput

.PHONY: bench-recovery
bench-recovery: setup ## Print seconds from fault to new iteration, beside plain PyTorchJob and torchrun; BENCH="--keep" for what is missing
	@$(PY) -m bench.recovery $(BENCH)

.PHONY: bench-plain
bench-plain: setup ## Do the fault table's rows to a PyTorchJob without this operator, and write what it did; BENCH="--keep"
	@$(PY) -m bench.plain_rows $(BENCH)

.PHONY: faults
faults: setup-trainer ## The whole fault table on the local cluster, with what takes minutes
	@MEGATRON_FAULTS=all $(PY) -m pytest -q tests/faults

.PHONY: soak
soak: setup-trainer ## 200 random faults; SOAK="--faults 20 --seed 7 --minutes 30" for others
	@$(PY) -m bench.soak $(SOAK)

.PHONY: lock
lock: setup ## Compile the pinned requirements anew
	@for name in operator dev; do \
	  $(PY) -m uv pip compile -q --universal --python-version 3.12 --generate-hashes --no-header \
	    -o requirements/$$name.txt requirements/$$name.in; done
	@$(PY) -m uv pip compile -q --universal --python-version 3.12 --generate-hashes --no-header \
	  -o trainer-image/requirements-cpu.txt trainer-image/requirements-cpu.in
	@$(PY) -m uv pip compile -q --no-deps --universal --python-version 3.12 --generate-hashes --no-header \
	  -o requirements/bridge.txt requirements/bridge.in
