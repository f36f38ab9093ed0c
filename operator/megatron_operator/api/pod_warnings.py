"""Warnings that pods report, in `status.warnings` and as Events."""

from enum import StrEnum


class PodWarning(StrEnum):
    """Reasons of `status.warnings` and of their Events; the trainer chooses them, others may appear."""

    meaning: str
    action: str

    def __new__(cls, value: str, meaning: str, action: str) -> "PodWarning":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.action = meaning, action
        return member

    CHECKPOINT_VOLUME_LOW = (
        "CheckpointVolumeLow",
        "The checkpoint volume has little free space.",
        "Extend the volume, or set `checkpoint.keep`.",
    )
    CHECKPOINT_VOLUME_NOT_WRITABLE = (
        "CheckpointVolumeNotWritable",
        "The checkpoint volume rejects writes; the trainer waits and retries.",
        "Make the volume writable for the pod's user.",
    )
