"""Events of device memory: out of memory, the allocator, snapshots."""

from __future__ import annotations

CUDA = {
    "cuda.oom": "the caching allocator could not serve a request: device (index in the process, null unknown), "
    "tried_bytes, capacity_bytes, free_bytes, allocated_bytes, unallocated_bytes (reserved, not allocated), "
    "private_pool_bytes, process_bytes (this process, context and NCCL included), others (list of {pid, bytes}), "
    "allowed_bytes (a limit set by the process), expandable (bool: the text advises expandable_segments), "
    "handled (bool: the program says it goes on), corrupt_size (bool: an absurd request)",
    "cuda.oom_driver": "memory ran out below the allocator: what (cuda_error, cublas, cudnn, pinned), error",
    "cuda.expandable_conflict": "something that does not work with expandable_segments: what (ipc, pidfd, hook, "
    "driver)",
    "cuda.memory_summary": "torch.cuda.memory_summary(): device, ooms, retries, allocated_bytes, reserved_bytes",
    "cuda.snapshot": "a memory snapshot of one device: device, reserved_bytes, allocated_bytes, largest_free_bytes, "
    "ooms, oom_tried_bytes, expandable (bool), states_bytes, activations_bytes, named_bytes, top (list of "
    "{where, bytes})",
}
