"""Events of NCCL's RAS (``ncclras``). Ranks are the communicator's; counts are calls *launched*, not completed."""

from __future__ import annotations

RAS = {
    "ras.status": "one line of the communicator table: group (or comm), comms, nodes, ranks_per_comm, ranks_in_group, "
    "status (RUNNING, INIT, FINALIZE, ABORT, NOCOMM …), errors (list of OK, MISMATCH, INCOMPLETE, ERROR), job_gpus, "
    "report (number of the report in its file). RUNNING OK does not mean that data flows: every rank launched the same",
    "ras.mismatch": "ranks of a communicator launched different numbers of calls (one apart is usual while running; "
    "compare with the next report): comm (hash), op, launched (rank -> count), others_launched, others (how many "
    "unnamed ranks), behind (list of ranks with the fewest), lag, size, whole_job (bool: ranks are global), report",
    "ras.status_mismatch": "ranks of a communicator are in different states: comm, statuses (state -> how many), "
    "ranks (state -> named ranks), size, whole_job, report",
    "ras.incomplete": "processes or ranks that gave RAS no data: comm (empty: processes of the job), missing, ranks, "
    "processes (list of pid, host, gpus), size, whole_job, report",
    "ras.dead": "processes RAS could not reach for a minute: missing, processes (list of pid, host, gpus), ranks, "
    "report",
    "ras.timeout": "messages of RAS itself timed out: count, report",
    "ras.error": "ranks whose NCCL reports an error: comm, error, phase (init or async), count, ranks, whole_job, "
    "report",
    "ras.peer": "a change that monitoring saw (PEER_DEAD …): event, pid, host, gpus",
}
