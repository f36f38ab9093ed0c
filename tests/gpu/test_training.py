"""The trainer's gpu path from warm start to exit, on simulated GPUs. Their kernels compute nothing."""

import signal
from collections.abc import Callable

from tests.trainer.gang import Gang

# A save is complete at iterations 4, 8, ...
SAVE_INTERVAL = 4


def iterations(run: Gang) -> list[int]:
    return [record["iteration"] for record in run.records()]


def checkpoints(run: Gang) -> list[str]:
    return sorted(path.name for path in run.save.glob("iter_*"))


def test_a_rank_is_forked_trains_two_steps_and_exits(gpu_run: Callable[..., Gang]) -> None:
    run = gpu_run()
    run.start(extra=("--train-iters", "2"))
    assert run.wait() == [0], run.log()[-3000:]
    assert iterations(run) == [1, 2]
    assert run.termination(0)["reason"] == "Completed"
    assert "ranks start cold" not in run.log()
    lines = [line for line in run.log().splitlines() if "bound to" in line and "ranks: " in line]
    assert len(lines) == 1, "where ranks run is logged once, also where their cores are not known"


def test_two_ranks_resume_in_other_layouts(gpu_run: Callable[..., Gang]) -> None:
    """Tensor parallel, then pipeline parallel, then data parallel, each from the checkpoint before."""
    run = gpu_run(ranks=2)
    # As for an elastic run.
    run.flags.append("--dist-ckpt-optim-fully-reshardable")
    layouts = (
        ("--tensor-model-parallel-size", "2"),
        ("--pipeline-model-parallel-size", "2"),
        (),
    )
    for done, layout in enumerate(layouts):
        last = (done + 1) * SAVE_INTERVAL
        run.start(extra=("--train-iters", str(last), *layout))
        assert run.wait() == [0], run.log()[-3000:]
        assert iterations(run) == list(range(1, last + 1))
        assert (run.save / f"iter_{last:07}").is_dir()


def test_two_ranks_train_a_mixture_of_experts_with_a_fixed_capacity(gpu_run: Callable[..., Gang]) -> None:
    """Without one the sizes of messages would follow from what the router's kernels compute."""
    run = gpu_run(ranks=2)
    experts = (
        *("--num-experts", "4", "--expert-model-parallel-size", "2", "--moe-router-topk", "2"),
        *("--moe-token-dispatcher-type", "alltoall", "--moe-router-load-balancing-type", "none"),
        *("--moe-expert-capacity-factor", "1.0", "--moe-pad-expert-input-to-capacity"),
        *("--swiglu", "--disable-bias-linear"),
    )
    run.start(extra=("--train-iters", "2", *experts))
    assert run.wait() == [0], run.log()[-3000:]
    assert iterations(run) == [1, 2]
    assert (run.save / "iter_0000002").is_dir()


def test_all_ranks_restart_from_the_checkpoint_when_one_is_killed(gpu_run: Callable[..., Gang]) -> None:
    run = gpu_run(ranks=2)
    run.hold_after(SAVE_INTERVAL + 1)
    run.start(extra=("--train-iters", "16"))
    run.await_checkpoint(SAVE_INTERVAL)
    run.kill_rank(0)
    assert run.wait() == [0], run.log()[-3000:]
    (incident,) = run.incidents()
    assert incident["cause"] == "rank 0 was killed by SIGKILL"
    assert incident["resumedFrom"] == SAVE_INTERVAL
    assert run.survivors() == []


def test_a_writer_killed_during_training_is_noticed_and_the_run_completes(
    gpu_run: Callable[..., Gang],
) -> None:
    """Of a rank on a GPU: the writer maps the rank's device memory and copies from it."""
    run = gpu_run(ranks=2)
    # Only memory of torch's own allocator can be mapped.
    del run.environment["PYTORCH_NO_CUDA_MEMORY_CACHING"]
    run.start(extra=("--train-iters", "20", "--async-save", "--no-check-for-nan-in-loss-and-grad"))
    run.await_checkpoint(SAVE_INTERVAL)
    # Megatron raises the writer's nice value to 10, from wherever the rank's is.
    (writer,) = (child for child in run.ranks(0)[0].children() if child.nice() == 10)
    writer.kill()
    assert run.wait() == [0], run.log()[-3000:]
    (incident,) = run.incidents()
    assert incident["cause"] == "rank 0: the checkpoint writer was killed by signal 9"
    assert incident["resumedFrom"] >= SAVE_INTERVAL
    assert checkpoints(run)[-1] == "iter_0000020"
    assert run.survivors() == []


def test_a_rank_with_a_wedged_kernel_is_found_and_killed(gpu_run: Callable[..., Gang]) -> None:
    run = gpu_run()
    run.environment["MEGATRON_HANG_TIMEOUT"] = "10"
    run.inject({"what": "device", "at": SAVE_INTERVAL + 2, "generations": [1], "state": {"wedged": 1}})
    run.start(extra=("--train-iters", "8"))
    run.await_iteration(SAVE_INTERVAL + 1)
    assert run.wait() == [0], run.log()[-3000:]
    (incident,) = run.incidents()
    assert (incident["kind"], incident["rank"], incident["resumedFrom"]) == ("hang", 0, SAVE_INTERVAL)
    assert run.survivors() == []


def test_sigterm_saves_and_exits_143(gpu_run: Callable[..., Gang]) -> None:
    run = gpu_run()
    run.start(extra=("--train-iters", "100000", "--save-interval", "100000"))
    run.await_iteration(2)
    run.pods[0].send_signal(signal.SIGTERM)
    assert run.wait() == [143], run.log()[-3000:]
    saved = run.termination(0)["checkpointIteration"]
    assert saved >= 2
    assert (run.save / f"iter_{saved:07}").is_dir()
