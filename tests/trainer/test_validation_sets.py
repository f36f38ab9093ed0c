"""Datasets that a run only evaluates on, with Megatron's own loop and the index that is built before it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_contract.environment import VALIDATION_FILE

from tests.trainer.gang import Gang
from tests.trainer.test_dataset_index import build_index, files
from tests.trainer.warm_process import WarmProcess

ITERATIONS, INTERVAL = 12, 4
REPEATED_TOKEN, DOCUMENTS, TOKENS = 7, 64, 400


class SplitGang(Gang):
    """A run with other data than Gang's own."""

    data: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        return [*self.flags, *self.data, "--train-iters", str(ITERATIONS), "--save", str(self.save)]


def write_one_token(prefix: Path) -> Path:
    """Write a dataset that repeats one token, which a model learns in a few steps. Returns its prefix."""
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for _ in range(DOCUMENTS):
        builder.add_document(torch.full((TOKENS,), REPEATED_TOKEN), [TOKENS])
    builder.finalize(f"{prefix}.idx")
    return prefix


@pytest.fixture(scope="module")
def one_token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_one_token(tmp_path_factory.mktemp("one-token") / "data")


@pytest.fixture
def run(tmp_path: Path, warm: WarmProcess) -> Iterator[SplitGang]:
    gang = SplitGang(tmp_path / "run", None, nodes=1, warm=warm, ranks=2)
    gang.folder.mkdir()
    yield gang
    gang.stop()


@pytest.mark.parametrize("sets", [1, 2])
def test_evaluations_are_of_the_validation_sets_alone(
    sets: int, run: SplitGang, corpus: Path, one_token: Path, tmp_path: Path
) -> None:
    text, cache = str(corpus / "text_text_document"), tmp_path / "cache"
    evaluated = [text] if sets == 1 else ["0.5", text, "0.5", text]
    data = ["--train-data-path", str(one_token), "--valid-data-path", *evaluated]
    tokenizer = ["--tokenizer-model", str(corpus / "tokenizer")]
    at = run.flags.index("--split")
    run.flags[at : at + 2] = []
    for name, value in {"--eval-iters": "1", "--eval-interval": str(INTERVAL)}.items():
        run.flags[run.flags.index(name) + 1] = value
    run.data = (*data, *tokenizer, "--data-cache-path", str(cache))

    of_the_index = ("--seq-length", "--global-batch-size", "--eval-iters", "--eval-interval")
    wanted = [word for flag in of_the_index for word in (flag, run.flags[run.flags.index(flag) + 1])]
    build_index([*wanted, "--tokenizer-type", "HuggingFaceTokenizer", *run.data], ITERATIONS)
    before = files(cache)
    run.start()
    assert run.wait() == [0], run.log()[-3000:]
    assert files(cache) == before, "rank 0 built nothing"

    lines = [json.loads(line) for line in (run.save / VALIDATION_FILE).read_text().splitlines()]
    losses = {line["iteration"]: line["lmLoss"] for line in lines if "lmLoss" in line}
    assert sorted(losses) == [4, 8, 12]
    (trained,) = run.losses()[ITERATIONS]
    assert trained < 3.0, "it learns the one token"
    assert losses[ITERATIONS] > 6.0, "of which the text has few"
