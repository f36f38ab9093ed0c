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
