"""Files that a run is evaluated on and that it trains on too: their loss is no validation."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from megatron_trainer.data.dataset import Dataset
from megatron_trainer.data.files import SourceFile


def check_validation_files(datasets: Sequence[Dataset], validation: Collection[str]) -> None:
    """Raise PreparationError for a file of a source in `validation` that another one has too.

    `validation` has the names of the sources that are only evaluated on. The operator compares paths: only
    here it is known which files a pattern matches.
    """
    if not validation:
        return
    trained = {
        _identity(file): each.source.name
        for each in reversed(datasets)
        if each.source.name not in validation
        for file in _files(each)
    }
    for dataset in (each for each in datasets if each.source.name in validation):
        for file in _files(dataset):
            if (name := trained.get(_identity(file))) is not None:
                problem = f"{file} is matched by {name}.path too, which is trained on"
                fix = "narrow one of the two patterns, or move the file to a folder of its own"
                raise dataset.source.refuse("path", f"{problem}; {fix}")


def _files(dataset: Dataset) -> Iterable[SourceFile]:
    return dict.fromkeys(file for shard in dataset.divided for file in shard.files)


def _identity(file: SourceFile) -> Path | str:
    """What is the same for links to one file; objects have no links."""
    return file.resolve() if isinstance(file, Path) else str(file)
