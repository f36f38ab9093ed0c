from pathlib import Path

import pytest
from megatron_trainer.launcher import flags


def test_reads_only_what_the_launcher_needs_and_leaves_the_rest_alone() -> None:
    known = flags.read(["--save", "/c", "--num-layers", "2", "--train-iters=30", "--bf16"])
    assert known == flags.Flags(Path("/c"), None, 30, "torch_dist")


def test_a_flag_without_a_number_is_refused_with_its_name() -> None:
    with pytest.raises(flags.BadFlags, match=r"--train-iters.*'many'"):
        flags.read(["--train-iters", "many"])


def test_a_run_that_saves_resumes_from_there_and_saves_on_sigterm() -> None:
    complete, added = flags.complete(["--save", "/c"])
    assert added == ["--load", "/c", "--exit-signal-handler", "--override-opt-param-scheduler"]
    assert complete == ["--save", "/c", *added]


def test_what_the_user_gave_is_not_added_again() -> None:
    given = ["--save", "/c", "--load", "/d", "--exit-signal-handler", "--use-checkpoint-opt-param-scheduler"]
    assert flags.complete(given) == (given, [])


def test_real_data_gets_its_index_beside_the_checkpoints() -> None:
    _, added = flags.complete(["--save", "/c", "--data-path", "/data/corpus"])
    assert added[added.index("--data-cache-path") + 1] == "/c/data-cache"


def test_async_save_gets_the_persistent_worker_without_which_megatron_drops_it() -> None:
    _, added = flags.complete(["--async-save"])
    assert "--use-persistent-ckpt-worker" in added


def test_a_restart_loads_everything_from_where_the_run_saved_whatever_it_began_with() -> None:
    argv = ["--load", "/base", "--finetune", "--no-load-optim", "--save", "/c", "--bf16"]
    resumed = flags.resume(argv)
    assert flags.read(resumed).load == Path("/c")
    assert not {"--finetune", "--no-load-optim"} & set(resumed)
    assert "--bf16" in resumed


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
def test_non_persistent_checkpoints_are_found_where_megatron_writes_them(
    words: list[str], fast: Path | None
) -> None:
    assert flags.read(["--save", "/save", *words]).fast == fast


def test_local_checkpoints_are_refused_with_what_to_use() -> None:
    with pytest.raises(flags.BadFlags, match="cannot be checked before a start; use global"):
        flags.read(["--save", "/save", "--non-persistent-ckpt-type", "local"])
