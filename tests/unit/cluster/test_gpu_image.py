"""The GPU image: its pins, and the check of its start without a driver."""

import json
import re

import pytest
from localcluster.errors import ClusterError
from localcluster.gpu_image import NO_DRIVER, parse_start
from localcluster.paths import CHECKOUT


def test_a_start_that_names_the_missing_driver_is_accepted() -> None:
    message = json.dumps({"message": f"{NO_DRIVER}: set this"})
    assert parse_start(f"138\n{message}\n") == f"exit 138, {NO_DRIVER}: set this"


@pytest.mark.parametrize("text", [f'70\n{{"message": "{NO_DRIVER}"}}', '138\n{"message": "GPU lost"}', "1\n"])
def test_another_end_of_a_start_without_a_driver_is_an_error(text: str) -> None:
    with pytest.raises(ClusterError, match="expected 138 and 'no NVIDIA driver in this container'"):
        parse_start(text)


def test_the_trainer_reports_the_missing_driver_in_these_words() -> None:
    text = (CHECKOUT / "trainer-image/megatron_trainer/worker/arguments.py").read_text()
    assert f'"{NO_DRIVER} (' in text


@pytest.mark.parametrize("name", ["gpu", "ngc", "te-build"])
def test_every_pin_has_a_hash(name: str) -> None:
    text = (CHECKOUT / f"trainer-image/requirements-{name}.txt").read_text()
    pins = re.findall(r"^([a-z][^=\s]*)==.*\\\n    --hash=sha256:", text, re.MULTILINE)
    assert pins == re.findall(r"^([a-z][^=\s]*)==", text, re.MULTILINE)
    assert pins


def test_the_image_on_a_base_with_torch_installs_no_other() -> None:
    text = (CHECKOUT / "trainer-image/requirements-ngc.txt").read_text()
    assert (
        re.findall(r"^(?:torch|numpy)==[\d.]+ ; (.*) \\$", text, re.MULTILINE)
        == ["sys_platform == 'none'"] * 2
    )
    assert not re.search(r"^(?:nvidia-cu|transformer-engine|triton)", text, re.MULTILINE)
