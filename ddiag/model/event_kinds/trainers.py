"""Events of trainers' logs: Hugging Face, Lightning, torchtitan, accelerate, RL trainers, and torch's own remarks."""

from __future__ import annotations

TRAINERS = {
    "trainer.nan_skip": "the program skips a step or batch because a value is not finite: what (nan, inf)",
    "trainer.nan": "the program complains of a value that is not finite: what (nan, inf)",
    "trainer.oom_skip": "the program skips a batch because memory ran out",
    "trainer.gc": "a garbage collection and how long it took: seconds, reason",
    "trainer.host_sync": "torch's sync debug mode warns of a call that waits for the device: where (file:line)",
    "trainer.tokens_by_rank": "tokens (or another measure of work) of each rank: tokens (list), squares (bool)",
    "trainer.fsdp_units": "a printed model: units (FullyShardedDataParallel modules), per_linear (of them around "
    "one Linear)",
    "trainer.parameters": "how many parameters the model has: parameters, trainable",
    "trainer.wrap_class_missing": "the class that FSDP should wrap is not in the model: name",
    "trainer.slow_load": "loading a checkpoint's shards: done, total, seconds",
    "ddp.unused_flag": "find_unused_parameters=True although every parameter was used",
    "moe.tokens_per_expert": "tokens each expert received: tokens (list), layer",
    "xpu_timer.hang": "xpu_timer's own judgement of a rank: hang (bool)",
    "nccl_tests.row": "one row of an nccl-tests table: bytes, time_us, algbw_gbps, busbw_gbps (gigabytes per "
    "second), wrong "
    "(count), test, in_place (bool)",
    "nccl_tests.average": "the average bus bandwidth of an nccl-tests run: busbw_gbps, test, nranks",
    "nccl_tests.device": "a line of the header: rank, host, device, name, bus_id",
}
