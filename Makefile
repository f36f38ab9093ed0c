# `make demo` and `make test` set up everything on a fresh machine; `make check` is the everyday command.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s'|'

.PHONY: demo
demo: setup ## Start a cluster, train a tiny GPT on it, kill a pod, watch the run recover (root)
	@$(PY) -m demo

.PHONY: check
check: setup-trainer ## Lint, unit tests, refusals, Megatron's argument gate: the everyday command, without root
	@scripts/check.sh

.PHONY: test
test: setup-trainer ## All layers: check, protocol, fuzz, Bridge, real ranks, control plane, faults on the cluster (root)
	@scripts/test.sh

.PHONY: setup
setup: ## Create .venv: operator, CLI, local cluster, test tools
	@scripts/setup.sh

.PHONY: setup-trainer
setup-trainer: ## The same, with torch and megatron-core for the trainer's tests
	@scripts/setup.sh trainer

.PHONY: setup-gpu-path
setup-gpu-path: setup ## Create .venv-gpu: the GPU image's packages on Python 3.13, for test-gpu-path (no GPU)
	@scripts/setup_gpu_path.sh

.PHONY: setup-bridge
setup-bridge: setup-trainer ## Create .venv-bridge: the trainer's packages with those of Megatron-Bridge
	@scripts/setup_bridge.sh

.PHONY: cluster-up
cluster-up: setup ## Start the local two-node cluster with both images, without the demo (root)
	@$(PY) -m localcluster up
	@$(PY) -m localcluster images

.PHONY: cluster-down
cluster-down: ## Stop the local cluster; leaves no process, mount, cgroup, interface or iptables rule
	@if [ -x $(PY) ]; then \
	  for profile in full control-plane; do $(PY) -m localcluster down --profile $$profile; done; fi

.PHONY: image-gpu
image-gpu: setup ## Build the trainer's image for GPUs from the registries, and measure it; IMAGE=--bridge (root)
	@$(PY) -m localcluster gpu-image $(IMAGE)

.PHONY: lint
lint: setup ## ruff and mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

.PHONY: crds
crds: setup ## Regenerate the CRD and docs/recipe.md from the pydantic models
	@$(PY) -m megatron_operator.api.crd crds/megatronrecipes.yaml
	@cp crds/megatronrecipes.yaml charts/megatron-operator/files/
	@$(PY) -m megatron_operator.api.reference docs/recipe.md docs/operations.md

.PHONY: chart-page
chart-page: setup ## Regenerate the chart's README.md from values.yaml
	@$(PY) scripts/chart_page.py

.PHONY: monitoring
monitoring: setup-trainer ## Regenerate the Grafana dashboard and the metrics in docs/monitoring.md
	@$(PY) scripts/dashboard.py
	@$(PY) scripts/metrics_page.py

.PHONY: catalog-pages
catalog-pages: setup ## Regenerate docs/catalog from the catalog's data
	@$(PY) scripts/catalog_pages.py

.PHONY: settings-page
settings-page: setup ## Regenerate docs/settings.md from scripts/settings.yaml
	@$(PY) scripts/settings_page.py

.PHONY: golden
golden: setup-trainer ## Regenerate golden files and public surfaces; review the diff
	@$(PY) -m pytest -q -n auto --maxprocesses 8 tests/unit --update-golden

.PHONY: generated
generated: crds chart-page catalog-pages settings-page monitoring golden ## Regenerate every committed file that is generated

.PHONY: bench-planner
bench-planner: setup ## Compare the planner's step times and memory with published ones
	@$(PY) -m bench.planner
	@$(PY) -m bench.memory
	@$(PY) -m bench.planned
	@$(PY) -m bench.search
	@$(PY) -m bench.intervals

.PHONY: bench-goodput
bench-goodput: setup ## Simulate the goodput of 16,384 GPUs through 466 interruptions
	@$(PY) -m bench.goodput

.PHONY: bench-recovery
bench-recovery: setup-trainer ## Measure recovery beside plain PyTorchJob and torchrun; BENCH="--keep" adds missing trials
	@$(PY) -m bench.recovery $(BENCH)

.PHONY: bench-plain
bench-plain: setup-trainer ## Inject the fault table into a plain PyTorchJob and record the outcome; BENCH="--keep"
	@$(PY) -m bench.plain_rows $(BENCH)

.PHONY: bench-prepare
bench-prepare: setup-trainer ## Compare megatron-prepare with Megatron's preprocessing; BENCH="--mebibytes 512"
	@$(PY) -m bench.prepare $(BENCH)

.PHONY: bench-weights
bench-weights: setup-bridge ## Convert models that are larger than their limit of memory (root); BENCH="--limit 1.75 --folder FOLDER"
	@.venv-bridge/bin/python -m bench.weights_memory $(BENCH)

.PHONY: bench-gang
bench-gang: setup-trainer ## Measure the gang's store with launchers without ranks; BENCH="--launchers 512"
	@$(PY) -m bench.gang $(BENCH)

.PHONY: bench-polling
bench-polling: setup ## Count polls of a healthy run beside runs whose pods do not answer; BENCH="--seconds 10"
	@$(PY) -m bench.polling $(BENCH)

.PHONY: ui-pictures
ui-pictures: setup ## Check the web page in a headless Chromium and draw docs/ui-*.png (needs chromium)
	@PYTHONPATH=.:trainer-image $(PY) scripts/ui_pictures.py

.PHONY: dashboard-picture
dashboard-picture: setup-trainer ## Draw docs/dashboard.png from what a Prometheus answers to the dashboard's queries (needs prometheus)
	@PYTHONPATH=. $(PY) scripts/dashboard_picture.py

.PHONY: notebook-picture
notebook-picture: setup ## Execute examples/run.ipynb against a stand-in for the API server and draw docs/notebook.png (needs chromium)
	@PYTHONPATH=. $(PY) scripts/notebook_picture.py

.PHONY: bench-scale
bench-scale: setup ## Measure what a fleet costs the operator; BENCH="--recipes 1000 --nodes 2000"
	@$(PY) -m bench.scale $(BENCH)

.PHONY: bench-fleet
bench-fleet: setup ## Replay weeks of a fleet with published failures; BENCH="--runs 20 --nodes 100 --minutes 4"
	@$(PY) -m bench.fleet $(BENCH)

.PHONY: gpu-check
gpu-check: setup-trainer ## Check the trainer on a GPU of this machine and write docs/hardware.md; without one exit code 2
	@$(PY) -m tests.gpu.hardware.main --machine
	@$(MAKE) --no-print-directory setup-gpu-path
	@.venv-gpu/bin/python -m tests.gpu.hardware.main $(CHECK)

.PHONY: gpu-check-fine-tuning
gpu-check-fine-tuning: setup-trainer ## Fine-tune Llama 3.2 1B and 3 8B with LoRA by Megatron-Bridge on a GPU of this machine (60 GB)
	@$(PY) -m tests.gpu.hardware.main --machine
	@scripts/setup_gpu_path.sh bridge
	@.venv-gpu-bridge/bin/python -m tests.gpu.hardware.fine_tuning $(CHECK)

.PHONY: test-gpu-path
test-gpu-path: setup-gpu-path ## Every recipe's model with Transformer Engine at full size, and its checkpoint, without a GPU
	@.venv-gpu/bin/python -m pytest -q tests/transformer_engine
	@# Not in the process above: a model leaves NVTE_FLASH_ATTN and the like in the environment of its process.
	@.venv-gpu/bin/python -m pytest -q tests/gpu/test_fork_safety.py \
	  tests/gpu/test_start_without_a_driver.py tests/gpu/test_transformer_engine.py

.PHONY: faults
faults: setup-trainer ## The whole fault table on the local cluster, slow faults included (more than an hour)
	@MEGATRON_FAULTS=all $(PY) -m pytest -q tests/faults
	@MEGATRON_FAULTS=all $(PY) -m pytest -q tests/fine_tuning/test_fault_table.py

.PHONY: faults-jobset
faults-jobset: setup-trainer ## The quick rows of the fault table with runs on JobSet (root, not in `make test`)
	@MEGATRON_FAULTS_BACKEND=jobset $(PY) -m pytest -q tests/faults/test_fault_table.py

.PHONY: faults-trainjob
faults-trainjob: setup-trainer ## The same with runs on TrainJob
	@MEGATRON_FAULTS_BACKEND=trainjob $(PY) -m pytest -q tests/faults/test_fault_table.py

.PHONY: protocol
protocol: setup-trainer ## Explore the recovery protocol with more faults than `make test` (not timed yet)
	@MEGATRON_PROTOCOL=all $(PY) -m pytest -q -rP tests/protocol

.PHONY: test-jobset
test-jobset: setup-trainer ## Test the JobSet backend with JobSet's controller, which is built first (minutes)
	@$(PY) -m pytest -q --tb short tests/control_plane/test_jobset.py

.PHONY: test-trainjob
test-trainjob: setup-trainer ## Test the TrainJob backend with the controllers of Kubeflow Trainer and JobSet (minutes)
	@$(PY) -m pytest -q --tb short tests/control_plane/test_trainjob.py

.PHONY: control-plane-jobset
control-plane-jobset: setup-trainer ## The tests of the control plane with runs on JobSet (not in `make test`)
	@MEGATRON_CONTROL_PLANE_BACKEND=jobset $(PY) -m pytest -q --tb short tests/control_plane

.PHONY: control-plane-trainjob
control-plane-trainjob: setup-trainer ## The same with runs on TrainJob
	@MEGATRON_CONTROL_PLANE_BACKEND=trainjob $(PY) -m pytest -q --tb short tests/control_plane

.PHONY: test-kueue
test-kueue: setup-trainer ## Test runs in queues with Kueue's controller, which is built first (minutes)
	@$(PY) -m pytest -q --tb short tests/control_plane/test_kueue.py

.PHONY: fuzz
fuzz: setup-trainer ## Fuzz every reader of foreign text: CASES=100000, FUZZ="--seed 7 --target recipe --minutes 10"
	@$(PY) -m testkit.fuzz --cases $(or $(CASES),100000) $(FUZZ)

.PHONY: bridge-training
bridge-training: setup-bridge ## Train by Megatron-Bridge's functions on the CPU, also under the launcher (minutes)
	@MEGATRON_BRIDGE_TRAINING=1 $(PY) -m pytest -q tests/bridge/test_training.py
	@MEGATRON_BRIDGE_TRAINING=1 .venv-bridge/bin/python -m pytest -q tests/trainer/test_bridge.py \
	  tests/trainer/test_bridge_families.py tests/trainer/test_bridge_pretraining.py \
	  tests/trainer/test_bridge_continued_pretraining.py \
	  tests/trainer/test_bridge_layouts.py tests/trainer/test_bridge_split_sequences.py \
	  tests/trainer/test_bridge_starts.py tests/trainer/test_check_root.py \
	  tests/trainer/test_weights.py tests/trainer/test_quantized_weights.py \
	  tests/trainer/test_chats.py tests/trainer/test_harmony_chats.py tests/trainer/test_sample_blend.py \
	  tests/trainer/test_own_loop_conversions.py tests/trainer/test_hub_weights.py \
	  tests/trainer/test_image_text.py tests/trainer/test_frozen_parts.py tests/trainer/test_sound_text.py \
	  tests/trainer/test_omni.py tests/trainer/test_nemotron_media.py tests/trainer/test_step_layers.py \
	  tests/trainer/test_packing.py tests/trainer/test_packed_attention.py tests/trainer/test_packed_chats.py \
	  tests/trainer/test_packed_training.py tests/trainer/test_diffusion.py \
	  tests/trainer/test_bridge_index.py tests/trainer/test_bridge_validation_sets.py \
	  tests/trainer/test_line_index.py tests/trainer/test_read_errors.py tests/trainer/test_bridge_hooks.py

.PHONY: bridge-recipes
bridge-recipes: setup-bridge ## Train a small model of every function that starts by Megatron-Bridge, on one rank (minutes)
	@.venv-bridge/bin/python -m pytest -q tests/trainer/test_bridge_recipes.py

.PHONY: weights-check
weights-check: setup-bridge ## Prove that the weights of families convert, and that both engines load them (minutes)
	@.venv-bridge/bin/python -m bench.weights
	@MEGATRON_WEIGHTS_CHECK=1 .venv-bridge/bin/python -m pytest -q tests/trainer/test_weights.py \
	  tests/trainer/test_weights_in_engines.py

.PHONY: weights-table
weights-table: setup-bridge ## Write the table of families into docs/weights.md
	@.venv-bridge/bin/python -m bench.weights --write

.PHONY: fine-tuning
fine-tuning: setup-trainer ## Fine-tune on the local cluster: weights in, faults, merged weights out; builds Bridge's image (root)
	@$(PY) -m pytest -q -s tests/fine_tuning

.PHONY: soak
soak: setup-trainer ## 200 random faults; SOAK="--faults 20 --seed 7 --minutes 30" for others
	@$(PY) -m bench.soak $(SOAK)

.PHONY: release
release: setup ## Build wheels, chart, CRD, bills of materials and checksums into dist/; RELEASE="--dirty"
	@$(PY) scripts/release.py $(RELEASE)

.PHONY: set-version
set-version: setup ## Set the version in every file that names it; VERSION=1.2.3, or 1.2.3-dev after a release
	@$(PY) scripts/set_version.py "$(VERSION)"

.PHONY: lock
lock: setup ## Recompile the pinned requirements
	@for name in operator dev; do \
	  $(PY) -m uv pip compile -q --universal --python-version 3.12 --generate-hashes --no-header \
	    -o requirements/$$name.txt requirements/$$name.in; done
	@$(PY) -m uv pip compile -q --universal --python-version 3.12 --generate-hashes --no-header \
	  -o requirements/tracking-tests.txt requirements/tracking-tests.in
	@$(PY) -m uv pip compile -q --universal --python-version 3.12 --generate-hashes --no-header \
	  -o trainer-image/requirements-tracking.txt trainer-image/requirements-tracking.in
	@$(PY) -m uv pip compile -q --universal --python-version 3.12 --generate-hashes --no-header \
	  -o trainer-image/requirements-cpu.txt trainer-image/requirements-cpu.in
	@$(PY) -m uv pip compile -q --universal --python-version 3.12 --generate-hashes --no-header \
	  -c trainer-image/requirements-cpu.txt \
	  -o trainer-image/requirements-bridge-run.txt trainer-image/requirements-bridge-run.in
	@$(PY) -m uv pip compile -q --universal --python-version 3.13 --generate-hashes --no-header \
	  -c trainer-image/requirements-cpu.txt -o trainer-image/requirements-gpu.txt trainer-image/requirements-gpu.in
	@$(PY) -m uv pip compile -q --universal --python-version 3.13 --generate-hashes --no-header \
	  -c trainer-image/requirements-bridge-run.txt -c trainer-image/requirements-gpu.txt \
	  -o trainer-image/requirements-bridge-gpu.txt trainer-image/requirements-bridge-gpu.in
	@$(PY) -m uv pip compile -q --no-deps --universal --python-version 3.13 --generate-hashes --no-header \
	  -o trainer-image/requirements-te-build.txt trainer-image/requirements-te-build.in
	@$(PY) -m uv pip compile -q --universal --python-version 3.12 --generate-hashes --no-header \
	  -c trainer-image/requirements-cpu.txt --overrides trainer-image/overrides-ngc.txt \
	  -o trainer-image/requirements-ngc.txt trainer-image/requirements-ngc.in
	@$(PY) -m uv pip compile -q --no-deps --universal --python-version 3.12 --generate-hashes --no-header \
	  -o trainer-image/requirements-bridge.txt trainer-image/requirements-bridge.in
