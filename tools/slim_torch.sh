#!/bin/sh
# Removes the parts of torch's CUDA build that training on CPUs never loads.
# Usage: slim_torch.sh VENV
#
# The libraries that libtorch_cuda.so and libtorch_cpu.so link to stay, because `import torch` loads
# them: cuBLAS, cuFFT, cuSPARSE, cuSPARSELt, NCCL, nvJitLink, NVRTC, CUPTI, cuFile, libcudnn.so.9,
# libnvshmem_host.so.3.
set -eu
for site in "$1"/lib/python3.*/site-packages; do
    [ -d "$site/torch" ] || { echo "slim_torch: no torch in $site" >&2; exit 1; }
    rm -rf "$site/triton" "$site/torch/include" "$site/torch/bin/protoc"*
    find "$site/torch" "$site/nvidia" -name '*.a' -delete
    [ -d "$site/nvidia" ] || continue
    find "$site/nvidia" -type d \( -name include -o -name cccl \) -prune -exec rm -rf {} +
    # torch opens the parts of cuDNN and cuSOLVER by name at their first use on a GPU.
    find "$site/nvidia" \( -name 'libcudnn_*' -o -name 'libcusolver*' -o -name 'libcurand*' -o -name 'libcufftw*' \
        -o -name 'libnvperf*' -o -name 'libcheckpoint*' -o -name 'libnvshmem_device*' -o -name 'nvshmem_*' \) -delete
done
