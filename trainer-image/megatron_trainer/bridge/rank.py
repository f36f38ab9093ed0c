"""One rank of a Megatron-Bridge run: its recipe function, its loop, and how it ends."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron_contract.bridge_run import BridgeRun
from megatron_contract.exit_codes import ExitCode

from megatron_trainer import bridge_flags
from megatron_trainer.bridge import (
    configuration,
    diffusion,
    harmony,
    line_index,
    packing,
    qwen3_omni,
    sample_files,
    starting_weights,
    vocabulary,
)
from megatron_trainer.bridge.agreed_weights import Start
from megatron_trainer.bridge.starting_weights import StartingWeights
from megatron_trainer.checkpoints import selection
from megatron_trainer.flags import BRIDGE_FORMAT
from megatron_trainer.read_errors import is_temporary
from megatron_trainer.telemetry.reporter import SKIP_ENV, Reporter
from megatron_trainer.worker import main, tracebacks
from megatron_trainer.worker.arguments import require_gpus
from megatron_trainer.worker.failures import (
    FLAG_REJECTIONS,
    RankError,
    classify,
    classify_early_exit,
    classify_in_loop,
    describe,
)


def _train(argv: Sequence[str], reporter: Reporter, _forked: bool) -> None:
    """Run Bridge's loop with hooks. Raises RankError unless the last iteration is done."""
    tracebacks.make_picklable()
    require_gpus()
    start = Start.from_environment()
    config = _configure(argv, start)
    skip = {int(word) for word in os.environ.get(SKIP_ENV, "").split()}
    config.train.iterations_to_skip = sorted(skip.union(config.train.iterations_to_skip))

    from megatron_trainer.bridge.hooks import BridgeHooks

    hooks = BridgeHooks(
        config,
        reporter,
        start.resume_from,
        main.loss_spike_detector(config.checkpoint.save),
    )
    hooks.install()
    harmony.install()
    sample_files.name_lines()
    line_index.install()
    packing.wait_outside_collectives(reporter)
    try:
        _enter(config)
    except SystemExit as end:
        raise classify_early_exit(end.code, hooks.iteration) from end
    except sample_files.SampleLineError as error:
        raise RankError(ExitCode.BAD_DATA, sample_files.place_and_reason(error)) from error
    except Exception as error:
        if hooks.building and isinstance(error, FLAG_REJECTIONS) and not is_temporary(error):
            raise _refused(error) from error
        raise classify_in_loop(error, hooks.iteration, hooks.stepping) from error
    finally:
        hooks.close()
    if hooks.iteration < config.train.train_iters:
        raise classify_early_exit(0, hooks.iteration)
    reporter.send("finished", iteration=hooks.iteration)


def _configure(argv: Sequence[str], start: Start) -> Any:
    run = bridge_flags.parse(argv)
    config, weights = configuration.make(run, start)
    if _has_corpus(run, config):
        if weights is None:
            _keep_vocabulary(config, start.resume_from)
        vocabulary.fit(config, run.overrides)
    if weights is not None and start.resume_from is None:
        _start_from(weights, config)
    if start.resume_from is not None:
        # Everything from the run's own checkpoints.
        config.checkpoint.load = config.checkpoint.save
        config.checkpoint.ckpt_step = start.resume_from
        config.checkpoint.finetune = False
        if config.peft is None:
            config.checkpoint.pretrained_checkpoint = None
        _load_what_was_saved(config)
    elif _has_nothing_to_load(config.checkpoint):
        config.checkpoint.load = None
    return config


def _has_nothing_to_load(checkpoint: Any) -> bool:
    """Whether a first start would load from where it saves: a file of Bridge's names what was set aside."""
    if None in (checkpoint.load, checkpoint.save) or Path(checkpoint.load) != Path(checkpoint.save):
        return False
    return selection.read_tracker(Path(checkpoint.save)) != selection.RELEASE


def _has_corpus(run: BridgeRun, config: Any) -> bool:
    return configuration.pretrains(run) and not diffusion.is_diffusion(config)


def _keep_vocabulary(config: Any, iteration: int | None) -> None:
    """Keep that of the run's checkpoint: an export that was added or removed since would change it."""
    if iteration is not None:
        own = selection.directory(Path(config.checkpoint.save), iteration)
        vocabulary.keep(config, own, pretrains=True)


def _load_what_was_saved(config: Any) -> None:
    """Bridge's load asks for states that a checkpoint was saved without, and fails."""
    folder = selection.directory(Path(config.checkpoint.load), config.checkpoint.ckpt_step)
    saved = (starting_weights.configuration(folder) or {}).get("checkpoint") or {}
    config.checkpoint.load_optim = saved.get("save_optim", True)
    config.checkpoint.load_rng = saved.get("save_rng", True)


def _start_from(weights: StartingWeights, config: Any) -> None:
    """Have the first start of a run read its weights, and the adapters of another run."""
    if config.tokenizer.use_tokenizer_vocab_size:
        vocabulary.require_same(weights.base)
    if weights.adapters is None:
        return
    from megatron_trainer.bridge import earlier_adapters

    if config.peft is None:
        earlier_adapters.merge_into(config, weights.base, weights.adapters)
    else:
        starting_weights.require_same_adapters(config.peft, weights.adapters, config.model)
        earlier_adapters.train_on(weights.adapters)


def _enter(config: Any) -> None:
    from megatron.bridge.training import gpt_step, vlm_step
    from megatron.bridge.training.finetune import finetune
    from megatron.bridge.training.pretrain import pretrain

    # The latter requires a checkpoint to load.
    loads = (config.checkpoint.pretrained_checkpoint, config.checkpoint.ckpt_step) != (None, None)
    start = finetune if loads else pretrain
    if diffusion.is_diffusion(config):
        start(config, diffusion.forward_step(config, configuration.PLATFORM))
        return
    # Only the former pass images and sound on to the model.
    step: Any = vlm_step if configuration.reads_images(config) else gpt_step
    if qwen3_omni.trains(config.model):
        from megatron.bridge.models.qwen_omni import qwen3_omni_step

        step = qwen3_omni_step
    start(config, step.forward_step)


def _refused(error: Exception) -> RankError:
    return RankError(ExitCode.USAGE, f"Megatron-Bridge refuses the configuration: {describe(error)}")


def check(argv: Sequence[str]) -> int:
    """Check GPUs, the function, the overrides and the files that they name. Returns the exit code."""
    reporter = Reporter()
    with open(os.devnull, "w") as devnull, contextlib.redirect_stdout(devnull):  # noqa: PTH123
        try:
            require_gpus()
            run = BridgeRun.from_arguments(argv)
            config, weights = configuration.make(run, None)
            sample_files.check(config)
            if _has_corpus(run, config):
                if weights is None and config.checkpoint.save is not None:
                    save = Path(config.checkpoint.save)
                    _keep_vocabulary(config, selection.newest_complete(save, BRIDGE_FORMAT))
                vocabulary.check(config, run.overrides)
            _validate(config)
        except BaseException as error:
            failure = classify(error)
            reporter.send("failed", **failure.report().to_json())
            return int(failure.code)
    return int(ExitCode.OK)


def _validate(config: Any) -> None:
    from megatron.bridge.training.config import runtime_config_update

    try:
        runtime_config_update(config)
        config.validate()
    except FLAG_REJECTIONS as error:
        if is_temporary(error):
            raise
        raise _refused(error) from error


def run_rank(argv: Sequence[str], forked: bool = False) -> int:
    """Train as one rank, as worker.main.run_rank does. Returns the exit code."""
    return main.run_rank(argv, forked, _train)


if __name__ == "__main__":
    configuration.import_bridge()
    sys.exit({"rank": run_rank, "preflight": check}[sys.argv[1]](sys.argv[2:]))
