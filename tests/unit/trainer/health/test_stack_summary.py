"""What the log of a pod has of the stacks of a hang."""

from dataclasses import replace

from megatron_trainer.health.stack_summary import MAX_FRAMES, MAX_STACKS, summarize_stacks
from megatron_trainer.health.stacks import MAIN_THREAD, RankState

OTHER_THREAD = 'Thread 0x00007f1c (most recent call first):\n  File "threading.py", line 359 in wait'


def rank(number: int, *frames: str, state: str = "running") -> RankState:
    lines = [f'  File "{frame}.py", line 1 in {frame}' for frame in frames]
    stacks = "\n".join([MAIN_THREAD, *lines, "", OTHER_THREAD]) if frames else ""
    return RankState(number, number // 8, 100 + number, 5, "training", state, "", False, bool(frames), stacks)


def test_the_ranks_that_differ_come_first_and_those_with_one_stack_share_it() -> None:
    ranks = [rank(each, "all_reduce", "train_step") for each in range(7)] + [rank(7, "loop", "train_step")]
    assert summarize_stacks(ranks).splitlines() == [
        "rank 7 (pid 107): running, 5 iterations done, training",
        '  File "loop.py", line 1 in loop',
        '  File "train_step.py", line 1 in train_step',
        "rank 0 (pid 100): running, 5 iterations done, training",
        "  the same stack: rank 1, 2, 3, 4, 5, 6",
        '  File "all_reduce.py", line 1 in all_reduce',
        '  File "train_step.py", line 1 in train_step',
    ]


def test_a_rank_without_an_answer_is_listed_by_its_state() -> None:
    text = summarize_stacks([rank(0, "wait"), rank(1, "wait"), rank(2, state="stopped")])
    assert text.startswith(
        "rank 2 (pid 102): stopped, 5 iterations done, training\n  no answer to the request"
    )


def test_ranks_whose_main_thread_is_not_known_share_a_stack_too() -> None:
    frames = '  File "all_reduce.py", line 1 in all_reduce'
    stacks = [f"Thread 0x{each:016x} (most recent call first):\n{frames}" for each in range(3)]
    ranks = [replace(rank(each, "all_reduce"), stacks=stacks[each]) for each in range(3)]
    assert summarize_stacks(ranks).splitlines() == [
        "rank 0 (pid 100): running, 5 iterations done, training",
        "  the same stack: rank 1, 2",
        frames,
    ]


def test_the_innermost_frames_of_a_few_stacks_are_kept() -> None:
    deep = [rank(each, *(f"f{each}_{depth}" for depth in range(100))) for each in range(16)]
    lines = summarize_stacks(deep).splitlines()
    assert len(lines) == MAX_STACKS * (1 + MAX_FRAMES + 1) + 1
    assert lines[1] == '  File "f0_0.py", line 1 in f0_0'
    assert lines[MAX_FRAMES + 1] == "  80 more frames"
    assert lines[-1] == "ranks with other stacks: 13"


def test_a_long_list_of_ranks_and_a_long_frame_are_cut() -> None:
    text = summarize_stacks([rank(each, "x" * 10_000) for each in range(72)])
    assert "14, 15, 16 and 55 more" in text
    assert len(text) < 1000


def test_a_pod_without_ranks_has_no_stacks() -> None:
    assert summarize_stacks([]) == ""
