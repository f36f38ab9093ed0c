"""A process that has imported Megatron-Bridge and forks conversions, since that import takes many seconds."""

import contextlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.weights.round_trip import Compare


@dataclass(frozen=True)
class Ended:
    """How a command ended, with standard output and standard error."""

    code: int
    output: str


class WarmConverter:
    """Runs `megatron-convert` and proofs. Close it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def convert(self, *argv: str | Path, log: Path) -> Ended:
        """Run `megatron-convert` with these arguments; `log` takes its output."""
        return self._request("convert", [str(word) for word in argv], log)

    def prove(self, name: str, dtype: str, folder: Path) -> dict[str, Any]:
        """Run the proof of a family. Returns its figures, or the error that it ended with."""
        result = folder / "proof.json"
        ended = self._request("prove", [name, dtype, str(folder), str(result)], folder / "log")
        if ended.code:
            return {"error": ended.output[-2000:]}
        return json.loads(result.read_text())  # type: ignore[no-any-return]

    def prove_padded(self, folder: Path) -> Ended:
        """Run the proof of a padded vocabulary."""
        return self._request("padded", [str(folder)], folder / "log")

    def prove_images(self, name: str, folder: Path) -> dict[str, Any]:
        """Prove a family that reads images, as round_trip.prove does."""
        return self._prove("images", name, folder)

    def prove_sound(self, name: str, folder: Path) -> dict[str, Any]:
        """Prove a family that takes sound, as round_trip.prove does."""
        return self._prove("sound", name, folder)

    def prove_media(self, name: str, folder: Path) -> dict[str, Any]:
        """Prove a family that reads images and takes sound, as round_trip.prove does."""
        return self._prove("media", name, folder)

    def prove_nemotron(self, name: str, folder: Path) -> dict[str, Any]:
        """Prove a family of testkit.nemotron, as round_trip.prove does."""
        return self._prove("nemotron", name, folder)

    def prove_packed(self, name: str, folder: Path) -> dict[str, float]:
        """Compare packed samples of a family with the same ones alone, as packed_proof.prove_packed does."""
        return self._prove("packed", name, folder)

    def _prove(self, kind: str, name: str, folder: Path) -> dict[str, Any]:
        result = folder / "proof.json"
        ended = self._request(kind, [name, str(folder), str(result)], folder / "log")
        assert ended.code == 0, ended.output[-2000:]
        return json.loads(result.read_text())  # type: ignore[no-any-return]

    def prove_image_run(self, run: Path, base: Path, exported: Path, result: Path) -> dict[str, Any]:
        """Compare what a run trained on images with its export, as round_trip.prove_run does."""
        return self._prove_run("image run", run, base, exported, result)

    def prove_sound_run(self, run: Path, base: Path, exported: Path, result: Path) -> dict[str, Any]:
        """Compare what a run trained on sound with its export, as round_trip.prove_run does."""
        return self._prove_run("sound run", run, base, exported, result)

    def prove_media_run(self, run: Path, base: Path, exported: Path, result: Path) -> dict[str, Any]:
        """Compare what a run trained on images and sound with its export, as round_trip.prove_run does."""
        return self._prove_run("media run", run, base, exported, result)

    def prove_nemotron_run(self, run: Path, base: Path, exported: Path, result: Path) -> dict[str, Any]:
        """Compare what a run of testkit.nemotron trained with its export, as round_trip.prove_run does."""
        return self._prove_run("nemotron run", run, base, exported, result)

    def _prove_run(self, kind: str, *paths: Path) -> dict[str, Any]:
        result = paths[-1]
        ended = self._request(kind, [str(path) for path in paths], result.with_suffix(".log"))
        assert ended.code == 0, ended.output[-2000:]
        return json.loads(result.read_text())  # type: ignore[no-any-return]

    def prove_written(self, name: str, folder: Path) -> Ended:
        """Compare the files of a checkpoint with those of Megatron's own writer."""
        return self._request("written", [name, str(folder)], folder / "log")

    def prove_split(self, folder: Path) -> dict[str, float]:
        """Compare a Step-3.5 on two tensor-parallel ranks, as split_proof.prove_split does."""
        result = folder / "proof.json"
        ended = self._request("split", [str(folder), str(result)], folder / "log")
        assert ended.code == 0, ended.output[-2000:]
        return json.loads(result.read_text())  # type: ignore[no-any-return]

    def peak(self, *argv: str | Path, log: Path) -> int:
        """Run `megatron-convert`; returns the bytes by which its memory exceeded that of the imports."""
        result = log.with_suffix(".peak")
        ended = self._request("peak", [str(result), *(str(word) for word in argv)], log)
        assert ended.code == 0, ended.output
        return int(result.read_text())

    def write_adapters(self, imported: Path, run: Path, rank: int) -> int:
        """Write random adapters beside an import, as large_adapters.write does; returns their bytes."""
        result = run.with_suffix(".bytes")
        ended = self._request(
            "adapters", [str(imported), str(run), str(rank), str(result)], Path(f"{run}.log")
        )
        assert ended.code == 0, ended.output[-2000:]
        return int(result.read_text())

    def merged_logits(self, adapters: Path, source: Path, exported: Path, result: Path) -> dict[str, float]:
        """Compare logits with adapters, as proof.merged_logits does."""
        log = result.with_suffix(".log")
        ended = self._request("logits", [str(path) for path in (adapters, source, exported, result)], log)
        assert ended.code == 0, ended.output
        return json.loads(result.read_text())  # type: ignore[no-any-return]

    def trained_logits(self, run: Path, exported: Path, result: Path) -> dict[str, float]:
        """Compare logits of a run and of what was exported of it, as proof.trained_logits does."""
        argv = [str(path) for path in (run, exported, result)]
        ended = self._request("trained", argv, result.with_suffix(".log"))
        assert ended.code == 0, ended.output[-2000:]
        return json.loads(result.read_text())  # type: ignore[no-any-return]

    def loss(self, folder: Path, ids: list[int], result: Path) -> float:
        """The mean loss of transformers' model in a folder over these ids, but for the first."""
        argv = [str(folder), json.dumps(ids), str(result)]
        ended = self._request("loss", argv, result.with_suffix(".log"))
        assert ended.code == 0, ended.output[-2000:]
        return float(json.loads(result.read_text()))

    def logits_of_run(self, words: list[str], run: Path, exported: Path, result: Path) -> dict[str, float]:
        """Compare logits of a run of Megatron's own loop, as proof.logits_of_run does."""
        argv = [json.dumps(words), *(str(path) for path in (run, exported, result))]
        ended = self._request("own loop", argv, result.with_suffix(".log"))
        assert ended.code == 0, ended.output[-2000:]
        return json.loads(result.read_text())  # type: ignore[no-any-return]

    def _request(self, what: str, argv: list[str], log: Path) -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, argv, str(log)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the warm process has ended"
        return Ended(int(answer), log.read_text(errors="replace"))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _convert(argv: list[str]) -> None:
    from megatron_trainer.weights import command

    command.main(argv)


def _prove(argv: list[str]) -> None:
    from testkit.weights.proof import prove_by_name

    name, dtype, folder, result = argv
    Path(result).write_text(json.dumps(prove_by_name(name, dtype, Path(folder))))


def _prove_padded(argv: list[str]) -> None:
    from testkit.weights.proof import prove_padded

    assert prove_padded(Path(argv[0]))


def _prove_media(media: str, argv: list[str]) -> None:
    from testkit import image_models, nemotron, omni_text, sound_models
    from testkit.weights.round_trip import prove

    name, folder, result = argv
    families = {
        **{"images": image_models.FAMILIES, "sound": sound_models.FAMILIES, "media": omni_text.FAMILIES},
        "nemotron": nemotron.FAMILIES,
    }[media]
    family = families[name]
    kept = media in ("media", "nemotron") or family.architecture == "Step3p7ForConditionalGeneration"
    found = prove(family.write, _compare_media(media), Path(folder), beside_base=kept)
    Path(result).write_text(json.dumps(found))


def _prove_media_run(media: str, argv: list[str]) -> None:
    from testkit.weights.round_trip import prove_run

    run, base, exported, result = map(Path, argv)
    result.write_text(json.dumps(prove_run(_compare_media(media), run, base, exported)))


def _compare_media(media: str) -> "Compare":
    from testkit.weights import image_proof, nemotron_proof, omni_proof, sound_proof

    of = {"images": image_proof.compare, "sound": sound_proof.compare, "media": omni_proof.compare}
    return {**of, "nemotron": nemotron_proof.compare}[media]


def _prove_written(argv: list[str]) -> None:
    from testkit.weights.proof import prove_written

    assert prove_written(argv[0], Path(argv[1]))


def _prove_split(argv: list[str]) -> None:
    from testkit.weights.split_proof import prove_split

    Path(argv[1]).write_text(json.dumps(prove_split(Path(argv[0]))))


def _prove_packed(argv: list[str]) -> None:
    from testkit.weights.packed_proof import prove_packed

    name, folder, result = argv
    Path(result).write_text(json.dumps(prove_packed(name, Path(folder))))


def _peak(argv: list[str]) -> None:
    before = _kibibytes("VmRSS")
    # The peak begins again at what is in memory now.
    Path("/proc/self/clear_refs").write_text("5")
    try:
        _convert(argv[1:])
    finally:
        Path(argv[0]).write_text(str((_kibibytes("VmHWM") - before) << 10))


def _write_adapters(argv: list[str]) -> None:
    from testkit.weights.large_adapters import write

    Path(argv[3]).write_text(str(write(Path(argv[0]), Path(argv[1]), int(argv[2]))))


def _kibibytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _compare_logits(argv: list[str]) -> None:
    from testkit.weights.proof import merged_logits

    adapters, source, exported, result = map(Path, argv)
    result.write_text(json.dumps(merged_logits(adapters, source, exported)))


def _compare_trained(argv: list[str]) -> None:
    from testkit.weights.proof import trained_logits

    run, exported, result = map(Path, argv)
    result.write_text(json.dumps(trained_logits(run, exported)))


def _loss(argv: list[str]) -> None:
    from testkit.weights.proof import loss

    folder, ids, result = argv
    Path(result).write_text(json.dumps(loss(Path(folder), json.loads(ids))))


def _compare_run(argv: list[str]) -> None:
    from testkit.weights.proof import logits_of_run

    words, result = json.loads(argv[0]), Path(argv[3])
    result.write_text(json.dumps(logits_of_run(words, Path(argv[1]), Path(argv[2]))))


_WORK: dict[str, Callable[[list[str]], None]] = {
    "convert": _convert,
    "prove": _prove,
    "padded": _prove_padded,
    "images": partial(_prove_media, "images"),
    "image run": partial(_prove_media_run, "images"),
    "sound": partial(_prove_media, "sound"),
    "sound run": partial(_prove_media_run, "sound"),
    "media": partial(_prove_media, "media"),
    "media run": partial(_prove_media_run, "media"),
    "nemotron": partial(_prove_media, "nemotron"),
    "nemotron run": partial(_prove_media_run, "nemotron"),
    "written": _prove_written,
    "split": _prove_split,
    "packed": _prove_packed,
    "peak": _peak,
    "adapters": _write_adapters,
    "logits": _compare_logits,
    "trained": _compare_trained,
    "own loop": _compare_run,
    "loss": _loss,
}


def _in_fork(what: str, argv: list[str], log: str) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        sys.stdout = sys.stderr = open(log, "a", buffering=1)  # noqa: PTH123, SIM115
        _WORK[what](argv)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    """Answer each line of the standard input, [what, arguments, log], with an exit code."""
    from megatron_trainer.weights import cpu_model

    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        cpu_model.import_bridge()
    for line in sys.stdin:
        answers.write(f"{_in_fork(*json.loads(line))}\n")
        answers.flush()


if __name__ == "__main__":
    main()
