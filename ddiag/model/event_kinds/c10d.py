"""Events of torch.distributed: process groups, stores, launchers."""

from __future__ import annotations

C10D = {
    "c10d.watchdog_timeout": "a rank's watchdog gave up on a collective: group, group_desc, group_rank, seq, op "
    "(all_reduce … in our words), op_raw, numel_in, numel_out, timeout_ms, ran_ms, blocking (bool)",
    "c10d.pg_status": "how far a rank's group came when the watchdog complained: group, group_desc, group_rank, at, "
    "last_enqueued, last_completed",
    "c10d.collective_stack": "stack of the failed collective: frames (list, innermost first), group, group_rank",
    "c10d.watchdog_exception": "the watchdog ended with an error that is no timeout (sticky CUDA error …): error",
    "c10d.heartbeat": "the watchdog thread itself made no progress: seconds, group_rank, work_list_size",
    "c10d.dump_signal": "a rank was told to dump: from_rank",
    "c10d.desync": "desync report: lagging (list of ranks), never_joined (list), finished, started (maps seq -> ranks)",
    "c10d.fingerprint_mismatch": "DETAIL debug: ranks, op, shapes and sequence numbers of the two sides",
    "c10d.monitored_barrier": "monitored_barrier named ranks that did not come: missing (list), timeout_ms",
    "c10d.barrier_device_warning": "barrier guesses the device of a rank: device",
    "c10d.unique_id_timeout": "a rank waited for the NCCL id that a root never wrote: waiting_rank, root_rank, key",
    "gloo.timeout": "a gloo wait timed out: timeout_ms, direction (recv or send), peer",
    "gloo.peer_closed": "a gloo connection was closed or reset by the peer: peer (address)",
    "gloo.connect_failed": "gloo's full mesh could not be connected: peer, error",
    "store.connect_timeout": "a client could not reach the store: address, port, timeout_ms",
    "store.connect_retry": "a client could not reach the store yet and tries again: address, port, error",
    "store.lost": "the store's server went away: a victim's line",
    "store.wait_timeout": "a key never came: key, timeout_ms",
    "store.port_in_use": "the store's port is taken: port",
    "launcher.child_failed": "the launcher's report of one failed worker: rank, local_rank, host, pid, exitcode, "
    "signal, error_file, time_ns, first (bool: named as root cause), last_started and last_rank (of "
    "DeepSpeed's last process, where it does not say which failed)",
    "launcher.signal": "a launcher or worker received a signal: signal, pid",
    "launcher.killing": "a launcher kills its workers because one failed: pid, exitcode, local_rank",
    "launcher.restart": "workers are restarted: attempt, of",
    "launcher.rendezvous_failed": "rendezvous did not complete: error",
    "python.exception": "an uncaught exception: type, message, frames (list, innermost first), caused_by, "
    "local_rank (as the launcher labels its line), thread (it ended that thread, not the process)",
    "python.fatal": "the interpreter died (faulthandler, segfault): reason",
    "log.kernel_warning": "accelerate warns of a kernel below 5.5: version",
    "log.bus_error": "PyTorch says that a loader worker met a bus error: /dev/shm was full (text only)",
    "log.clock_skew": "a tool says that the clocks of the nodes differ",
    "log.stale_lock": "a lock file of another (or an earlier) process is in the way",
    "log.progress": "the last sign of life of a rank's loop: step, epoch, total, what (train, eval, tokenizer, save …)",
    "log.phase": "a rank says what it does: phase (checkpoint_save, checkpoint_load, evaluate, tokenize, compile, "
    "generate, weight_sync …), begin (bool)",
    "log.said": "one of the last lines that a training script itself printed and that name one rank: (text only)",
}
