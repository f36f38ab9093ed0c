"""Proves that prepared chats and documents suffice for a run that fine-tunes on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from megatron_contract.exit_codes import ExitCode

from megatron_trainer.bridge import sample_blend
from megatron_trainer.bridge.sample_blend import Mix, Share
from megatron_trainer.data.preparation_error import PreparationError
from megatron_trainer.data.sources import Source


@dataclass(frozen=True)
class ChatRun:
    """What a run reads: samples of `seq_length` tokens, `batch` an iteration, `samples` in all of training.

    `split` are the shares of training and validation.
    """

    seq_length: int
    batch: int
    samples: int
    max_epochs: int
    split: str
    evaluates: bool
    vocab_size: int | None = None


class ChatCounts(NamedTuple):
    """Numbers of a folder: all chats and documents that were read, and where they went."""

    read: int
    left_out: int
    """Chats of which no answer begins within a sample."""
    training: int
    """Samples in the file of the training split; a long document is several."""
    validation: int
    """Samples in the file of the validation split."""


@dataclass(frozen=True)
class Part:
    """A file of the run: the sources that it has samples of, and how many of each.

    `is_split`: each source gives a share to both files, by data.split.
    """

    name: str
    sources: Sequence[Source]
    samples: Sequence[int]
    is_split: bool

    @property
    def mix(self) -> Mix | None:
        """The shares by which the run reads the file; None if an epoch has each sample once."""
        if not sample_blend.is_weighted(source.weight for source in self.sources):
            return None
        return [Share(count, source.weight) for source, count in zip(self.sources, self.samples, strict=True)]

    @property
    def what(self) -> str:
        """The word for its samples."""
        if any(source.is_text for source in self.sources):
            return "samples"
        return "chats"


def parts(sources: Sequence[Source], counts: Sequence[ChatCounts]) -> tuple[Part, Part]:
    """Return the files for training and for validation of sources with these counts."""
    found = list(zip(sources, counts, strict=True))
    alone = [pair for pair in found if pair[0].validation]
    trained = [pair for pair in found if not pair[0].validation]
    made = []
    for name, listed in (("training", trained), ("validation", alone or trained)):
        of_part = [getattr(count, name) for _, count in listed]
        made.append(Part(name, [source for source, _ in listed], of_part, not alone))
    return made[0], made[1]


def check_run(training: Part, validation: Part, run: ChatRun) -> None:
    """Raise PreparationError unless the samples suffice, and the run repeats none too often."""
    for part in (training, validation):
        if part is training or run.evaluates:
            (_check_batch if part.mix is None else _check_each)(part, run)
    if training.mix is None:
        _check_epochs(training, run)
    else:
        _check_shares(training, training.mix, run)


def _check_batch(part: Part, run: ChatRun) -> None:
    """An epoch has whole batches."""
    count, what = sum(part.samples), part.what
    if count >= run.batch:
        return
    takes = f"and an iteration takes {run.batch:,}"
    if part.is_split:
        text = f"data.split {run.split} leaves {count:,} {what} to {part.name}, {takes}"
        fix = f"add {what}, or set another data.split or training.globalBatchSize"
    else:
        given = "the sources without validation"
        if part.name == "validation":
            given = ", ".join(source.name for source in part.sources)
        text = f"{given}: {count:,} {what} for {part.name}, {takes}"
        fix = f"add {what}, or set another training.globalBatchSize"
    fix += ", or training.evalIters: 0" if part.name == "validation" else ""
    raise PreparationError(ExitCode.BAD_DATA, f"{text}; {fix}")


def _check_each(part: Part, run: ChatRun) -> None:
    """A source without a sample has no share."""
    for source, count in zip(part.sources, part.samples, strict=True):
        if count:
            continue
        problem, fix = f"has no samples for {part.name}", "correct the path"
        if part.is_split:
            problem = f"data.split {run.split} leaves none of its samples to {part.name}"
            fix = "add some, or set another data.split"
            fix += ", or training.evalIters: 0" if part.name == "validation" else ""
        raise source.refuse("path", f"{problem}; {fix}")


def _check_epochs(part: Part, run: ChatRun) -> None:
    count, what = sum(part.samples), part.what
    epoch = count // run.batch * run.batch
    epochs = -(-run.samples // epoch)
    if epochs > run.max_epochs:
        text = f"the run reads {run.samples:,} {what}, and {count:,} are for training: {epochs:,} epochs"
        fix = f"set data.maxEpochs: {epochs}, a smaller training.trainIters, or add {what}"
        raise PreparationError(
            ExitCode.BAD_DATA, f"data.maxEpochs: {text}, at most {run.max_epochs:,}; {fix}"
        )


def _check_shares(part: Part, mix: Mix, run: ChatRun) -> None:
    """Each source by itself: one that the run reads more of has more epochs."""
    total = sum(share.weight for share in mix)
    for source, share, read in zip(
        part.sources, mix, sample_blend.samples_read(mix, run.samples), strict=True
    ):
        epochs = -(-read // share.samples)
        if epochs > run.max_epochs:
            text = (
                f"the run reads {read:,} samples of it ({share.weight / total:.3g} of {run.samples:,}), and "
                f"{share.samples:,} are for training: {epochs:,} epochs, at most {run.max_epochs:,}"
            )
            fix = f"set data.maxEpochs: {epochs}, a smaller weight or training.trainIters, or add {part.what}"
            raise source.refuse("weight", f"{text}; {fix}")
