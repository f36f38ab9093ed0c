"""Which errors are evidence of failed hardware."""

import pytest
from megatron_contract.exit_codes import ExitCode
from megatron_contract.hardware import ErrorSource, Evidence, classify_error, evidence_in_kernel_log
from megatron_contract.termination import TerminationMessage

XID = "6,1234,987654,-;NVRM: Xid (PCI:0000:3b:00): {code}, pid=1234, name=python, {text}\n"


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered", Evidence.DEVICE_MEMORY),
        ("CUDA error: uncorrectable NVLink error detected during the execution", Evidence.DEVICE_LINK),
        ("NVMLError_GpuIsLost: GPU is lost", Evidence.DEVICE_LOST),
        (XID.format(code=79, text="GPU has fallen off the bus."), Evidence.DEVICE_LOST),
    ],
)
def test_an_error_that_only_hardware_causes_is_evidence(text: str, evidence: Evidence) -> None:
    found = classify_error(text)
    assert (found.source, found.evidence) == (ErrorSource.HARDWARE, evidence)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("CUDA error: device-side assert triggered", ErrorSource.DEVICE),
        ("CUDA error: an illegal memory access was encountered", ErrorSource.DEVICE),
        ("CUDA error: unspecified launch failure", ErrorSource.DEVICE),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", ErrorSource.DEVICE),
        ("NCCL error in: NCCLUtils.cpp:77, unhandled cuda error", ErrorSource.DEVICE),
        ("ncclInvalidUsage: NCCL error in: ProcessGroupNCCL.cpp", ErrorSource.DEVICE),
        (
            "NCCL error: remote process exited or there was a network error, NCCL version 2.27",
            ErrorSource.PEER,
        ),
        (
            "NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error (run with NCCL_DEBUG=INFO)",
            ErrorSource.PEER,
        ),
        ("RuntimeError: sample 7 cannot be read", ErrorSource.OTHER),
        (
            "a view of a leaf Variable that requires grad is being used in an in-place operation.",
            ErrorSource.OTHER,
        ),
    ],
)
def test_any_other_error_is_no_evidence(text: str, source: ErrorSource) -> None:
    assert (classify_error(text).source, classify_error(text).evidence) == (source, None)


@pytest.mark.parametrize(
    ("codes", "evidence"),
    [
        ((48,), Evidence.DEVICE_MEMORY),
        ((74,), Evidence.DEVICE_LINK),
        ((119,), Evidence.DEVICE_XID),
        ((13,), None),
        ((31, 43), None),
        ((79, 43), Evidence.DEVICE_LOST),
        ((9999,), None),
    ],
)
def test_xids_of_applications_in_the_kernel_log_are_no_evidence(
    codes: tuple[int, ...], evidence: Evidence | None
) -> None:
    log = "".join(XID.format(code=code, text="...") for code in codes)
    assert evidence_in_kernel_log(f"6,1,1,-;eth0: link is up\n{log}") == evidence


RESET_OR_REBOOT = {46, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
"""Immediate action RESET_GPU or RESTART_BM in release 610 of NVIDIA's Xid catalog."""
WORKFLOW_OF_A_DEVICE = {48, 74}
RESTART_APP = {8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86}
RESTART_APP |= {88, 89, *range(96, 106), *range(126, 136), 139}
NO_ACTION = {14, 37, 38, 43, 44, 45, 54, 63, 66, 67, 78, 92, 93, 106, 107, 108, 121, 137, 141, 142, 151, 152}
NO_ACTION |= {153, 157, 159, 160, 161, *range(162, 173)}
UNUSED = {*range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31), *range(33, 37), 42, 47, *range(49, 54)}
UNUSED |= {*range(55, 60), 61, 65, 73, 81, 87, 90, 91, *range(111, 119), *range(122, 126), 138}


def in_the_log(code: int, text: str = "...") -> Evidence | None:
    return evidence_in_kernel_log(XID.format(code=code, text=text))


def test_the_table_has_each_code_of_the_catalog_in_one_class() -> None:
    classes = [RESET_OR_REBOOT, WORKFLOW_OF_A_DEVICE, RESTART_APP, NO_ACTION, UNUSED, {94, 154}]
    classes.append(set(range(144, 151)))
    assert sorted(code for each in classes for code in each) == list(range(1, 173))


def test_a_code_after_which_the_catalog_resets_the_device_is_evidence() -> None:
    assert {code for code in range(1, 173) if in_the_log(code)} == (
        RESET_OR_REBOOT | WORKFLOW_OF_A_DEVICE | {94}
    )


@pytest.mark.parametrize(
    ("code", "text", "evidence"),
    [
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004a5d06 0x0)", Evidence.DEVICE_LINK),
        (145, "RLW_RXPIPE Nonfatal XC1 i0 Link 02 (0x1)", None),
        (
            154,
            "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            Evidence.DEVICE_XID,
        ),
        (
            154,
            "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            Evidence.DEVICE_XID,
        ),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", None),
    ],
)
def test_links_and_recovery_actions_are_evidence_by_the_text_of_their_line(
    code: int, text: str, evidence: Evidence | None
) -> None:
    assert in_the_log(code, text) == evidence


def test_a_termination_message_carries_its_evidence() -> None:
    message = TerminationMessage.of(ExitCode.WORKER_DIED, "broken", evidence=Evidence.DEVICE_MEMORY)
    read = TerminationMessage.parse(message.dumps())
    assert read is not None
    assert read.evidence == Evidence.DEVICE_MEMORY


@pytest.mark.parametrize("written", ['"Bribery"', '""'])
def test_unknown_evidence_is_none(written: str) -> None:
    read = TerminationMessage.parse(f'{{"reason": "WorkerDied", "evidence": {written}}}')
    assert read is not None
    assert read.evidence == ""
