#!/bin/sh
# remove-gpu-files.sh VENV: deletes what the packages of torch bring for GPUs alone and no process on CPUs opens,
# 1.1 GB. The libraries that libtorch_cuda.so is linked with stay: without them torch cannot be imported.
set -eu
packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cd "$packages"
rm -rf \
    nvidia/cu13/lib/libcusolverMg.so.* \
    nvidia/cu13/lib/libnvperf_* \
    nvidia/cu13/lib/libnvrtc.alt.so.* \
    nvidia/cudnn/lib/libcudnn_*.so.* \
    nvidia/nvshmem/lib/libnvshmem_device.* \
    torch/bin/ptxas \
    torch/include \
    torch/lib/libtorch_cuda_linalg.so \
    triton/backends/nvidia/bin \
    triton/backends/nvidia/lib
