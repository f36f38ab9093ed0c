"""What NVML reports of this pod's devices explains the death of a rank."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import Evidence
from megatron_trainer.health.device_errors import DeviceErrors, standing_fault
from megatron_trainer.platform.gpu import bus_ids
from megatron_trainer.termination import Ending

from tests.gpu.simulated import build
from tests.gpu.simulated.control import STATE_ENV, Devices

DIED = Ending(ExitCode.WORKER_DIED, "rank 1: CUDA error: unknown error", 1)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file with the states of two simulated devices of this process."""
    folder = tmp_path_factory.mktemp("nvml")
    build.build_nvml(folder)
    path = folder / "state"
    Devices(path)
    # Found by its name from now on, as on a machine with a driver.
    ctypes.CDLL(str(folder / "libnvidia-ml.so.1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMULATED_GPUS", "2")
        patch.setenv(STATE_ENV, str(path))
        yield path


@pytest.fixture
def devices(state: Path) -> Devices:
    state.write_bytes(bytes(state.stat().st_size))
    return Devices(state)


def test_an_uncorrectable_ecc_error_since_the_start_is_evidence(devices: Devices) -> None:
    devices.set(1, ecc_uncorrected=3, ecc_corrected=7)
    errors = DeviceErrors()
    assert errors.explain(DIED) == DIED
    devices.set(1, ecc_uncorrected=5)
    explained = errors.explain(DIED)
    assert explained.evidence == Evidence.DEVICE_MEMORY
    assert explained.message == f"{DIED.message} (NVML: 2 uncorrectable ECC errors on device 1)"
    assert errors.explain(DIED) == explained, "also when the exits are classified again"


def test_a_corrected_ecc_error_is_no_evidence(devices: Devices) -> None:
    errors = DeviceErrors()
    devices.set(0, ecc_corrected=1000)
    assert errors.explain(DIED) == DIED


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("remap_failed", "a row of memory of device 1 could not be remapped"),
        ("remap_pending", "a row of memory of device 1 waits for a reset to be remapped"),
        ("retirement_pending", "a page of memory of device 1 waits for a reboot to be retired"),
    ],
)
def test_memory_that_is_to_be_replaced_is_evidence(devices: Devices, field: str, text: str) -> None:
    errors = DeviceErrors()
    assert errors.explain(DIED) == DIED
    devices.set(1, **{field: 1})
    explained = errors.explain(DIED)
    assert explained.evidence == Evidence.DEVICE_MEMORY
    assert explained.message == f"{DIED.message} (NVML: {text})"

    assert standing_fault() == (Evidence.DEVICE_MEMORY, text)


def test_a_check_of_a_node_passes_counted_errors_and_not_a_lost_device(devices: Devices) -> None:
    devices.set(1, ecc_uncorrected=3)
    assert standing_fault() is None
    devices.set(1, lost=1)
    assert standing_fault() == (Evidence.DEVICE_LOST, "device 1 is lost")


def test_a_failed_remapping_from_before_the_start_is_evidence(devices: Devices) -> None:
    devices.set(0, remap_failed=1)
    assert DeviceErrors().explain(DIED).evidence == Evidence.DEVICE_MEMORY


@pytest.mark.parametrize("field", ["remap_pending", "retirement_pending"])
def test_memory_that_already_waited_for_a_reset_at_the_start_is_no_evidence(
    devices: Devices, field: str
) -> None:
    devices.set(0, **{field: 1})
    assert DeviceErrors().explain(DIED) == DIED, "its addresses have not been used since the error"


def test_an_xid_of_the_device_is_evidence_and_one_of_an_application_is_not(devices: Devices) -> None:
    errors = DeviceErrors()
    devices.report_xid(0, 31)
    assert errors.explain(DIED) == DIED
    devices.report_xid(0, 79)
    explained = errors.explain(DIED)
    assert explained.evidence == Evidence.DEVICE_LOST
    assert explained.message.endswith("(NVML: Xid 79 of device 0)")


def test_a_device_that_nvml_has_lost_is_evidence_also_if_it_was_lost_before_the_start(
    devices: Devices,
) -> None:
    devices.set(1, lost=1)
    assert DeviceErrors().explain(DIED).evidence == Evidence.DEVICE_LOST


def test_a_lost_peer_is_not_explained_by_the_own_devices(devices: Devices) -> None:
    errors = DeviceErrors()
    devices.set(0, lost=1)
    peer = Ending(ExitCode.PEER_LOST, "Connection closed by peer", 1)
    assert errors.explain(peer) == peer


def test_without_an_nvml_nothing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_GPUS", "0")
    assert DeviceErrors().explain(DIED) == DIED


def test_devices_are_named_by_their_place_on_the_pci_bus_and_lost_ones_are_not(devices: Devices) -> None:
    assert bus_ids(2) == ["00000000:1A:00.0", "00000000:1B:00.0"]
    devices.set(1, lost=1)
    assert bus_ids(3) == ["00000000:1A:00.0", None, None]


def test_a_device_has_the_state_of_the_id_that_a_device_plugin_gave(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMULATED_GPUS", "simulated-5,simulated-0")
    devices.set(5, lost=1)
    assert bus_ids(3) == [None, "00000000:1B:00.0", None]
