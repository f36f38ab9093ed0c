"""Runs of Megatron's own loop as the operator renders them, of small models."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

from megatron_operator.manifests import Manifests

from testkit.weights.warm import Ended, WarmConverter
from tests.trainer.gang import Gang
from tests.trainer.warm_process import WarmProcess

SIZES = MappingProxyType(
    {
        **{"numLayers": 2, "hiddenSize": 64, "ffnHiddenSize": 128, "numAttentionHeads": 4},
        **{"numQueryGroups": 2, "kvChannels": 16, "vocabSize": 256, "maxPositionEmbeddings": 128},
    }
)
"""`model` of the recipe."""


class OwnLoopGang(Gang):
    """The launcher of a run as the operator renders it; `data` stands for the data volume."""

    def __init__(
        self, folder: Path, warm: WarmProcess | None, data: Path, objects: Manifests, *, ranks: int = 4
    ) -> None:
        super().__init__(folder, None, nodes=1, warm=warm, ranks=ranks)
        self._data_volume = data
        self._objects = objects

    def _words(self, container: dict[str, Any]) -> list[str]:
        here = {"/data/": f"{self._data_volume}/", "/checkpoints/run": str(self.save)}
        words = [str(word) for word in container["args"]]
        for mounted, folder in here.items():
            words = [f"{folder}{w.removeprefix(mounted)}" if w.startswith(mounted) else w for w in words]
        return words

    def arguments(self) -> list[str]:
        pods = self._objects.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        return self._words(pods["containers"][0])

    def convert(self, converter: WarmConverter, job: dict[str, Any] | None) -> Ended:
        """Run what the Job of a conversion runs."""
        assert job is not None
        words = self._words(job["spec"]["template"]["spec"]["containers"][0])
        return converter.convert(*words, log=self.folder / "conversion.log")
