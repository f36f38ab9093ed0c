"""Datasets that a run of Megatron-Bridge only evaluates on, and the index that the check builds of them."""

import importlib.util
import json
from pathlib import Path

import pytest
from megatron_contract.environment import VALIDATION_FILE

from tests.trainer.test_bridge_index import CASE, SETTINGS, cache_of, checked
from tests.trainer.test_bridge_pretraining import PretrainingGang, _spec, _training
from tests.trainer.test_dataset_index import BUILT, files
from tests.trainer.test_validation_sets import write_one_token
from tests.trainer.warm_process import WarmProcess

ITERATIONS = 12
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="what Megatron-Bridge imports is not installed: run make bridge-training",
)


@pytest.mark.parametrize("sets", [1, 2])
def test_evaluations_are_of_the_validation_sets_alone(
    sets: int, tmp_path: Path, corpus: Path, warm_bridge: WarmProcess
) -> None:
    evaluated = ("text_text_document", "again_text_document")[:sets]
    blend = [{"path": "one"}, *({"path": path, "weight": 0.5, "validation": True} for path in evaluated)]
    data = {name: value for name, value in _spec(CASE)["data"].items() if name != "split"} | {"blend": blend}
    settings = SETTINGS | {"data": data, "training": _training(ITERATIONS)}
    run = PretrainingGang(tmp_path, warm_bridge, corpus, CASE, **settings)
    write_one_token(run.folder / "data/one")
    text = checked(run, settings)
    assert "new files of the index" in text
    before = files(cache_of(run))
    run.run_to_end()
    assert files(cache_of(run)) == before, "rank 0 built nothing"
    assert BUILT not in run.log()

    lines = [json.loads(line) for line in (run.save / VALIDATION_FILE).read_text().splitlines()]
    losses = {line["iteration"]: line["lmLoss"] for line in lines if "lmLoss" in line}
    assert sorted(losses) == [3, 6, 9, 12]
    (trained,) = run.losses()[ITERATIONS]
    assert losses[ITERATIONS] - trained > 2.0, "it learns the one token, of which the text has few"
