"""Events of Slurm's, Kubernetes' and Ray's own messages in a job's output."""

from __future__ import annotations

SLURM = {
    "slurm.cancelled": "the job or step was ended from outside: job, step, reason (time_limit, preemption, "
    "node_failure, "
    "user, other), node, at (as printed)",
    "slurm.oom_kill": "the cgroup's memory limit killed something: job, step, count, node, task",
    "slurm.node_fail": "a node failed or does not answer: node, job",
    "slurm.task_exit": "srun says how a task ended: node, tasks (list), exitcode, signal",
    "slurm.time_limit": "the limit was reached (before the kill): job",
    "k8s.pod_ended": "the kubelet ended or evicted a container: reason (OOMKilled, Evicted, Preempted, "
    "DeadlineExceeded), "
    "pod, exitcode",
    "ray.oom_kill": "Ray's memory monitor killed a worker of a node that was nearly out of memory: address, pid",
}
