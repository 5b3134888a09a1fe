"""Events that NCCL prints. Every one carries ``pid`` and ``dev`` (CUDA ordinal in the process, not the rank)."""

from __future__ import annotations

NCCL = {
    "nccl.version": "the library a process loaded: version, cuda",
    "nccl.init": "a communicator is made or ends: phase (start, complete, abort or destroy), rank and nranks in it, "
    "comm, comm_id, cuda_dev, nvml_dev, bus_id (0000:3b:00.0), function, parent, seconds",
    "nccl.interface": "addresses NCCL chose: purpose (bootstrap, socket or oob), interfaces (list of name), addresses",
    "nccl.network": "the network in use: name (Socket, IB, AWS Libfabric …)",
    "nccl.nics": "RDMA devices in use: devices (list of mlx5_0:1), kinds (list of IB or RoCE), oob",
    "nccl.no_rdma": "why there is no RDMA: reason (no_library, no_device, no_plugin or disabled), what",
    "nccl.channel": "first connection of a pair over one transport: src, dst, direction (send, receive or empty), "
    "transport (p2p, shm, net or collnet), detail (IPC, CUMEM, direct pointer …), net (Socket, IB …), nic, gdr (bool), "
    "via (local rank that forwards: PXN)",
    "nccl.connected": "all rings or trees are connected: what (rings or trees)",
    "nccl.gdr": "GPUDirect RDMA: enabled (bool), nic, gpu, distance, limit",
    "nccl.p2p_disabled": "P2P between two GPUs is off: a, b",
    "nccl.nvls": "NVLink multicast: available (bool)",
    "nccl.channels": "how many channels: coll, nvls, p2p",
    "nccl.timings": "how long making a communicator took: rank, nranks, total_s, bootstrap_s, …_s",
    "nccl.retry": "a connection is tried again (normal while peers start): error, address, interface",
    "nccl.connect_error": "a connection of the TCP side channel failed for good: error, address, interface, attempts",
    "nccl.peer_lost": "a victim's line, its peer went away: what, local_rank, peer_rank, address",
    "nccl.completion_error": "an RDMA operation failed: status (12 retries exhausted, 5 flushed …), vendor_err, peer "
    "(address), nic, direction, local_gid, remote_gid",
    "nccl.async_event": "an RDMA device reported: nic, what (port error, port active …)",
    "nccl.qp_error": "a queue pair could not be brought up: error, nic, state, gid_index, local_gid, remote_gid",
    "nccl.memlock": "memory could not be registered or a queue made: call, error",
    "nccl.shm_error": "shared memory could not be made: path, bytes, error",
    "nccl.cuda_failure": "a CUDA call of NCCL failed: code, message, where (source file)",
    "nccl.duplicate_gpu": "two ranks use one device: ranks (list of two), bus_id",
    "nccl.version_mismatch": "ranks with different NCCL versions: rank_a, version_a, rank_b, version_b",
    "nccl.protocol_mismatch": "peers do not speak alike: what (truncated, size, rank_count …), said",
    "nccl.limit": "a limit of the operating system was hit: what (files, ports, accept, threads), error",
    "nccl.imex": "multi-node NVLink is there but does not work: clique_size",
    "nccl.warning": "any other warning: message, where (source file)",
    "nccl.error": "the error torch raised for NCCL: error (unhandled cuda error …), result (ncclSystemError …), "
    "version, detail (last error)",
}
