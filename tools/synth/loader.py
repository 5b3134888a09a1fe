"""The data loader: worker processes that keep a few batches ready, or none."""

from __future__ import annotations

from tools.synth.engine import Rank
from tools.synth.job import Job

PREFETCH_FACTOR = 2


class Loader:
    """Batches of one rank; worker ``i % workers`` makes batch ``i``, as torch's loader deals them out."""

    def __init__(self, job: Job, rank: Rank) -> None:
        self.job = job
        self.rank = rank
        late = job.late
        late_here = late is not None and late.kind == "input" and late.hits(rank.rank)
        self._late_ms = late.ms if late is not None and late_here else 0.0
        self._index = 0
        self._ready_ns: dict[int, int] = {}
        self._taken_ns: dict[int, int] = {}

    def next_batch(self) -> None:
        """Wait for the next batch and copy it to the device."""
        rank, job = self.rank, self.job
        kind = "_MultiProcessingDataLoaderIter" if job.workers else "_SingleProcessDataLoaderIter"
        with rank.span(f"enumerate(DataLoader)#{kind}.__next__", "annotation"):
            if job.workers:
                self._wait_for_worker()
            else:
                self._make_here()
            if self._late_ms:
                rank.host(self._late_ms * 1e3)
        with rank.span("aten::to"), rank.span("aten::_to_copy"), rank.span("aten::copy_"):
            rank.copy("h2d", job.batch_bytes, gbps=job.host_link_gbps if job.pinned else 6.0, pinned=job.pinned)

    def _make_here(self) -> None:
        for name, share in (("aten::index_select", 0.7), ("aten::stack", 0.2), ("aten::contiguous", 0.1)):
            with self.rank.span(name):
                self.rank.host(self.job.batch_ms * 1e3 * share)

    def _wait_for_worker(self) -> None:
        index, workers = self._index, self.job.workers
        previous = self._ready_ns.get(index - workers, 0)
        room = self._taken_ns.get(index - workers * PREFETCH_FACTOR, 0)
        ready = max(previous, room) + self.rank.jitter(self.job.batch_ms * 1e6, 0.03)
        self._ready_ns[index] = ready
        self.rank.host(180)
        self.rank.now_ns = max(self.rank.now_ns, ready)
        self._taken_ns[index] = self.rank.now_ns
        self._index += 1
