"""Events about GPUs that tools and CUDA report outside the kernel's log."""

from __future__ import annotations

GPU = {
    "gpu.smi_error": "nvidia-smi cannot reach a GPU or the driver: what (lost, unknown_error, no_devices, "
    "driver_mismatch, err), bus_id, index",
    "gpu.cuda_hardware_error": "a CUDA error that only hardware or driver cause: what (ecc, nvlink, lost, "
    "not_initialized, launch_timeout), message",
    "gpu.diag": "a test of dcgmi diag: test, result (pass, fail, warn or skip), gpu",
    "gpu.straggler": "Megatron's straggler report names the rank with an extreme: metric, rank, value, peer_value",
}
