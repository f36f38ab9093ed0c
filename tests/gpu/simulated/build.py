"""Builds the simulated CUDA driver with the C compiler and the headers that torch's requirements install."""

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
BLAS_HEADERS = ("cublas_api.h", "cublasLt.h")
# cuBLAS functions with a result, as C: parameters and body. All others do nothing.
BLAS_RESULTS = {
    **dict.fromkeys(
        ("cublasCreate_v2", "cublasLtCreate", "cublasLtMatmulPreferenceCreate"),
        "void **handle) { *handle = calloc(1, 256); return 0; }",
    ),
    **dict.fromkeys(
        ("cublasLtMatmulDescCreate", "cublasLtMatrixLayoutCreate"),
        "void **handle) { *handle = calloc(1, 256); return 0; }",
    ),
    "cublasLtMatmulAlgoGetHeuristic": (
        "void *h, void *d, void *a, void *b, void *c, void *e, void *p, int n, char *result, int *found) "
        "{ memset(result, 0, 96); *found = 1; return 0; }"
    ),
    **dict.fromkeys(
        ("cublasGetMathMode", "cublasGetPointerMode_v2", "cublasGetSmCountTarget"),
        "void *handle, int *value) { *value = 0; return 0; }",
    ),
    "cublasGetVersion_v2": "void *handle, int *version) { *version = 130100; return 0; }",
    "cublasGetStream_v2": "void *handle, void **stream) { *stream = 0; return 0; }",
}
BLAS_PROLOGUE = """
#include <stdlib.h>
#include <string.h>
extern int simulated_launch(void);
size_t cublasLtGetVersion(void) { return 130100; }
size_t cublasLtGetCudartVersion(void) { return 13000; }
const char *cublasGetStatusString(int status) { return "simulated cuBLAS"; }
const char *cublasGetStatusName(int status) { return "simulated cuBLAS"; }
const char *cublasLtGetStatusString(int status) { return "simulated cuBLAS"; }
const char *cublasLtGetStatusName(int status) { return "simulated cuBLAS"; }
"""


def includes() -> list[Path]:
    """The folders of NVIDIA's headers: the runtime's, and Triton's for those that the runtime includes."""

    def folder(package: str, header: str) -> Path:
        listed = importlib.metadata.files(package) or []
        (found,) = (file for file in listed if str(file).endswith(f"/include/{header}"))
        return Path(str(found.locate())).parents[header.count("/")]

    return [folder("nvidia-cuda-runtime", "cuda_runtime_api.h"), folder("triton", "crt/host_defines.h")]


def no_op_blas(folder: Path) -> str:
    """C code in which every function of cuBLAS and cuBLASLt is a kernel launch, or returns a constant."""
    text = "".join((folder / header).read_text() for header in BLAS_HEADERS)
    names = set(re.findall(r"\b(cublas[A-Z]\w+)\s*\(", text)) | set(BLAS_RESULTS)
    lines = [BLAS_PROLOGUE]
    for name in sorted(
        name for name in names if f" {name}(" not in BLAS_PROLOGUE and f"*{name}(" not in BLAS_PROLOGUE
    ):
        lines.append(f"int {name}({BLAS_RESULTS.get(name, 'void) { simulated_launch(); return 0; }')}")
    return "\n".join(lines)


def stubs(header: str) -> str:
    """C code that defines every driver function of cuda.h, weakly: it fails as not supported."""
    names = set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", header))
    names |= {f"{name}_v2" for name in names} & set(re.findall(r"\bcu[A-Z]\w+_v2\b", header))
    lines = ["int simulated_missing(const char *name);"]
    for name in sorted(name for name in names if not name.endswith(("_ptsz", "_ptds"))):
        lines.append(f'__attribute__((weak)) int {name}(void) {{ return simulated_missing("{name}"); }}')
    return "\n".join(lines)


def build(folder: Path) -> None:
    """Write libcuda.so.1 (driver, runtime and cuBLAS) and libnvidia-ml.so.1 into `folder`."""
    headers = includes()
    (folder / "blas.c").write_text(no_op_blas(headers[0]))
    (folder / "stubs.c").write_text(stubs((headers[0] / "cuda.h").read_text()))
    own = [HERE / "driver.c", HERE / "runtime.c", HERE / "state.c"]
    _compile(folder / "libcuda.so.1", [*own, folder / "blas.c", folder / "stubs.c"], headers)
    build_nvml(folder)


def build_nvml(folder: Path) -> None:
    """Write libnvidia-ml.so.1 into `folder`."""
    _compile(folder / "libnvidia-ml.so.1", [HERE / "nvml.c", HERE / "state.c"], [])


def _compile(library: Path, sources: Iterable[Path], headers: Iterable[Path]) -> None:
    command = ["gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused-parameter", f"-I{HERE}"]
    command += [f"-isystem{folder}" for folder in headers]
    command += ["-Wl,-Bsymbolic", f"-Wl,-soname,{library.name}", "-o", str(library), *map(str, sources)]
    subprocess.run(command, check=True)


def environment(folder: Path, devices: int) -> Mapping[str, str]:
    """The variables with which a process sees the simulated devices of the libraries in `folder`."""
    return {
        "LD_PRELOAD": str(folder / "libcuda.so.1"),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])),
        "SIMULATED_GPUS": str(devices),
    }
