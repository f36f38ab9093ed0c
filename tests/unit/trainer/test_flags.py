"""Which flags the launcher reads and adds."""

from pathlib import Path

import pytest
from megatron_trainer import flags


def test_only_the_flags_of_the_launcher_are_read() -> None:
    parsed = flags.read(["--save", "/c", "--num-layers", "2", "--train-iters=30", "--bf16"])
    assert parsed == flags.Flags(Path("/c"), None, 30, "torch_dist")


def test_an_invalid_number_is_refused_with_the_name_of_the_flag() -> None:
    with pytest.raises(flags.FlagError, match=r"--train-iters.*'many'"):
        flags.read(["--train-iters", "many"])


def test_a_run_with_save_resumes_from_there_and_saves_on_sigterm() -> None:
    complete, added = flags.complete(["--save", "/c"])
    assert added[:4] == ["--load", "/c", "--exit-signal-handler", "--override-opt-param-scheduler"]
    assert complete == ["--save", "/c", *added]


def test_given_flags_are_not_added_again() -> None:
    given = ["--save", "/c", "--load", "/d", "--exit-signal-handler", "--use-checkpoint-opt-param-scheduler"]
    given.append("--rerun-mode=validate_results")
    assert flags.complete(given) == (given, [])


def test_megatron_leaves_a_nan_to_the_retry_policy() -> None:
    assert flags.complete([])[1][-2:] == ["--rerun-mode", "disabled"]


def test_the_index_of_real_data_is_stored_beside_the_checkpoints() -> None:
    _, added = flags.complete(["--save", "/c", "--data-path", "/data/corpus"])
    assert added[added.index("--data-cache-path") + 1] == "/c/data-cache"


def test_async_save_gets_the_persistent_worker() -> None:
    _, added = flags.complete(["--async-save"])
    assert added[-3:] == ["--use-persistent-ckpt-worker", "--async-strategy", "mcore"]


@pytest.mark.parametrize("flag", ["--async-save", "--non-persistent-ckpt-type=global", "--num-experts"])
def test_what_megatron_fsdp_does_not_save_or_load_is_refused(flag: str) -> None:
    with pytest.raises(
        flags.FlagError, match=f"^{flag.split('=')[0]} with --use-megatron-fsdp: .* leave one"
    ):
        flags.complete(["--use-megatron-fsdp", "--save", "/c", flag])


def test_a_writer_that_is_not_watched_is_refused() -> None:
    assert (
        flags.complete(["--async-save", "--async-strategy", "mcore"])[1][-1] == "--use-persistent-ckpt-worker"
    )
    with pytest.raises(flags.FlagError, match="--async-strategy nvrx: its writer is not watched"):
        flags.complete(["--async-save", "--async-strategy", "nvrx"])


def test_a_restart_loads_everything_from_the_save_directory() -> None:
    argv = ["--load", "/base", "--finetune", "--no-load-optim", "--save", "/c", "--bf16"]
    resumed = flags.resume(argv)
    assert flags.read(resumed).load == Path("/c")
    assert not {"--finetune", "--no-load-optim"} & set(resumed)
    assert "--bf16" in resumed


@pytest.mark.parametrize(
    "words", [["--pretrained-checkpoint", "/weights"], ["--pretrained-checkpoint=/weights"]]
)
def test_a_restart_does_not_begin_with_the_pretrained_weights_again(words: list[str]) -> None:
    """Megatron would take them while the save directory has no tracker."""
    resumed = flags.resume([*words, "--finetune", "--save", "/c", "--bf16"])
    assert resumed == ["--save", "/c", "--bf16", "--load", "/c"]
    assert flags.read([*words, "--save", "/c"]).pretrained == Path("/weights")


@pytest.mark.parametrize(
    ("words", "fast"),
    [
        ([], None),
        (["--non-persistent-ckpt-type", "global"], Path("/save/non_persistent")),
        (
            ["--non-persistent-ckpt-type", "global", "--non-persistent-global-ckpt-dir", "/fast"],
            Path("/fast"),
        ),
    ],
)
def test_the_directory_of_non_persistent_checkpoints_is_that_of_megatron(
    words: list[str], fast: Path | None
) -> None:
    assert flags.read(["--save", "/save", *words]).fast == fast


def test_local_checkpoints_are_refused_with_an_alternative() -> None:
    with pytest.raises(flags.FlagError, match="cannot be verified before a start; use global"):
        flags.read(["--save", "/save", "--non-persistent-ckpt-type", "local"])
