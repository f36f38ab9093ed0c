"""Builds the index of the samples of a run that Megatron-Bridge pretrains, on a machine without a GPU.

The function of the run makes the configuration, so that the index is the one that the run asks for.
"""

from pathlib import Path

from megatron_contract.bridge_run import PATH_TO_CACHE, BridgeRun

from megatron_trainer.worker.dataset_splits import leave_out_unread


def build(run: BridgeRun, cache: Path) -> None:
    """Build the index into `cache`. `run` has the overrides that its samples depend on.

    Raises RankError if Bridge refuses them, or does not find the data, and OSError.
    """
    from megatron_trainer.weights import cpu_model

    cpu_model.import_bridge()
    from megatron.bridge.data import loaders
    from megatron.bridge.data.utils import get_dataset_provider
    from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

    from megatron_trainer.bridge import configuration

    own = BridgeRun(run.function, {**run.overrides, PATH_TO_CACHE: str(cache)})
    config, _ = configuration.make(own, None)
    config.dataset.finalize()
    config.dataset.tokenizer = build_tokenizer(config.tokenizer)
    samples = list(loaders.get_train_valid_test_num_samples(config))
    leave_out_unread(config.dataset, samples)
    get_dataset_provider(config.dataset)(samples, config.dataset)
