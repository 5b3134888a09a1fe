"""Events of the Linux kernel and its drivers, from dmesg, syslog or the journal."""

from __future__ import annotations

KERNEL = {
    "kernel.xid": "the NVIDIA driver reports a fault: code, bus_id (0000:3b:00.0), pid, process, detail, link, fatal "
    "(bool or null), caused_by (code of an earlier Xid), action (what the driver asks for)",
    "kernel.sxid": "an NVSwitch reports a fault: code, bus_id, link, fatal (bool), detail, switch",
    "kernel.gpu_lost": "the driver lost or cannot start a GPU: bus_id, detail",
    "kernel.aer": "PCIe errors: bus_id (of the port that reports), severity (corrected, nonfatal or fatal), layer, "
    "detail",
    "kernel.oom_killer": "the kernel killed a process for want of memory: pid, process, constraint (cgroup, host or "
    "cpuset), cgroup, rss_bytes",
    "kernel.link": "a network link changed: interface, up (bool), bus_id, driver",
    "kernel.mlx5": "an mlx5 device complains: bus_id, what",
    "kernel.hung_task": "a task does not return from the kernel: process, pid, seconds",
    "kernel.nfs": "an NFS server does not answer, or does again: server, ok (bool)",
    "kernel.segfault": "a process crashed: process, pid, where",
    "kernel.machine_check": "the processor or its memory reports an error: detail",
    "kernel.io_error": "a disk or file system reports an error: device, detail",
    "kernel.iommu_fault": "the IOMMU refused an access: bus_id, detail",
}
