"""The watchdog: notices that the job makes no progress, captures why on every node, and says so while it hangs.

It is a fork of the supervisor in a session of its own. It only looks; nothing of the job is ended or changed unless the
user asked for ``--on-hang kill``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddiag.schema.hang import (
    BY_WATCHDOG,
    CaptureRequest,
    capture_requests,
    say_over,
    watchdog_mark,
    write_capture_request,
)
from ddiag.supervise.alarm import Alarm, judge, limits
from ddiag.supervise.door import Door
from ddiag.supervise.hang_capture import Wanted, capture
from ddiag.supervise.hang_report import diagnose, wait_for_nodes
from ddiag.supervise.processes import read_stat
from ddiag.supervise.progress import LocalRank, LocalRanks, Standing
from ddiag.supervise.signals import close_others
from ddiag.supervise.waiting import patience_s, somebody_waits

TICK_S = 1.0
MOST_ALARMS = 5
_SAME_HANG_S = 90.0
"""A request this young is about the hang that we see as well."""
_LOOK_AGAIN_S = 10.0
ENDING_S = 33.0
"""How long launchers take to end a job of which a rank has ended: torchrun waits 30 s before it kills."""
_KILL_AFTER_S = 30.0
_SURE = 3
"""Looks at ranks that move again before that is said: those that die move too."""
_STOP_S = 2.0


@dataclass(frozen=True)
class Guarded:
    """The job, as the watchdog needs to know it."""

    run: Path
    host: str
    root: int
    """Pid of the job's first process."""
    diagnoses: bool
    """Captures of all nodes are diagnosed on this host."""
    after_s: float | None
    """What the user set instead of a multiple of the usual step; None: automatic."""
    kill: bool
    """End the job once a hang has been diagnosed."""


class ToldToEndError(Exception):
    """The job has ended, or its supervisor is gone."""


def start_watchdog(guarded: Guarded, say: Callable[[str], None]) -> int | None:
    """Fork the watchdog, and return its pid; None when another supervisor of this host has one for this run."""
    try:
        os.close(os.open(watchdog_mark(guarded.run, guarded.host), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return None
    pid = os.fork()
    if pid == 0:
        _be_watchdog(guarded, say)
    return pid


def stop_watchdog(pid: int) -> None:
    """The job has ended: let it end what it is doing."""
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + _STOP_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return
        time.sleep(0.01)


def _be_watchdog(guarded: Guarded, say: Callable[[str], None]) -> None:
    """The watchdog's whole life; never returns."""
    try:
        os.setsid()
        close_others({0, 1, 2})
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        door = Door(say)
        door.run = guarded.run
        door.attempt("watch the job's progress", lambda: Watchdog(guarded, say).run())
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


class Watchdog:
    def __init__(self, guarded: Guarded, say: Callable[[str], None]) -> None:
        self._guarded = guarded
        self._say = say
        self._ranks = LocalRanks(guarded.run)
        self._supervisor = os.getppid()
        stat = read_stat(guarded.root)
        self._root_ticks = stat.start_ticks if stat is not None else -1
        self._answered = max((one.number for one in capture_requests(guarded.run)), default=0)
        """The newest request that was dealt with."""
        self._patience = 1.0
        self._alarms = 0
        self._hanging: dict[int, int] = {}
        """pid -> its last progress, of the ranks of an alarm; empty while all is well."""
        self._stopped_ns = 0
        """When all ranks were last seen stopped."""
        self._look_again = 0.0
        """When ranks that stand still, but of which none waits, are looked at next."""
        self._running = 0
        self._fewer_since = -ENDING_S
        self._moving = 0
        """Looks in a row at which all of them went on."""
        self._captured: list[Path] = []
        self._since_s = 0.0

    def run(self) -> None:
        """Until the job has ended."""
        try:
            while True:
                self.look()
                self.pause(TICK_S)
        except ToldToEndError:
            return

    def pause(self, seconds: float) -> None:
        """Wait; raises :class:`ToldToEndError`."""
        got = signal.sigtimedwait({signal.SIGTERM}, seconds)
        stat = read_stat(self._guarded.root)
        gone = stat is None or stat.start_ticks != self._root_ticks or stat.state == "Z"
        if got is not None or gone or os.getppid() != self._supervisor:
            raise ToldToEndError

    def look(self) -> None:
        """Once a second."""
        running = self._ranks.look()
        now_ns = time.monotonic_ns()
        standings = [one.standing(now_ns, not_before_ns=self._stopped_ns) for one in running]
        if standings and all(one.stopped for one in standings):
            self._stopped_ns = now_ns  # somebody stopped the job as a whole, and may let it go on
        self._answer(standings)
        if self._hanging:
            self._still_hanging()
        elif self._alarms < MOST_ALARMS and not self._ending(sum(one.alive for one in standings)):
            alarm = judge(standings, self._guarded.after_s, patience=self._patience)
            if alarm is not None and self._is_hang(alarm, running):
                self._alarm(alarm)

    def _is_hang(self, alarm: Alarm, running: Sequence[LocalRank]) -> bool:
        """Somebody waits, or it lasts so long that it is looked into all the same."""
        if time.monotonic() < self._look_again:
            return False
        still = [one for one in running if one.rank in alarm.ranks]
        if somebody_waits(still) or alarm.quiet_s > patience_s(still):
            return True
        self._look_again = time.monotonic() + _LOOK_AGAIN_S
        return False

    def _ending(self, running: int) -> bool:
        """Ranks have just ended: the launcher may be about to end the others, who wait for them in vain until then."""
        if running < self._running:
            self._fewer_since = time.monotonic()
        self._running = running
        return time.monotonic() - self._fewer_since < ENDING_S

    # -- a hang --------------------------------------------------------------------------------------------------------

    def _alarm(self, alarm: Alarm) -> None:
        self._alarms += 1
        self._since_s = time.time() - alarm.quiet_s
        self._hanging = {one.pid: one.progress_ns() for one in self._ranks.all() if one.rank in alarm.ranks}
        request = self._request()
        if request.number > self._answered:
            self._answered = request.number
            self._captured.append(self._capture(request, alarm.limits_s, frozenset(alarm.ranks)))
        if not self._guarded.diagnoses:
            self._say(f"{_ranks(alarm.ranks)} of {self._guarded.host} stand still; captured for the diagnosis")
            return
        self._say(f"no progress for {alarm.quiet_s:.0f} s on {_ranks(alarm.ranks)}; looking into it")
        wait_for_nodes(self._guarded.run, request.number, self.pause)
        for line in diagnose(self._guarded.run, request.number, self.pause):
            self._say(line)
        if self._guarded.kill:
            self._end_job()

    def _request(self) -> CaptureRequest:
        """Ask the other nodes too; one of them may have been quicker, and been answered already."""
        young = time.time_ns() - int(_SAME_HANG_S * 1e9)
        for one in reversed(capture_requests(self._guarded.run)):
            if one.wall_ns > young and one.by == BY_WATCHDOG:
                return one
        return write_capture_request(self._guarded.run, BY_WATCHDOG, self._guarded.host)

    def _capture(self, request: CaptureRequest, limits_s: Mapping[int, float], stuck: frozenset[int]) -> Path:
        wanted = Wanted(request.number, request.by, limits_s, stuck)
        return capture(self._guarded.run, self._guarded.host, self._ranks.all(), wanted)

    def _still_hanging(self) -> None:
        """They may go on after all: then it is said, and the next alarm takes longer to come."""
        now = {one.pid: one for one in self._ranks.all()}
        went_on = [now[pid] for pid, before in self._hanging.items() if now[pid].progress_ns() > before]
        if len(went_on) < len(self._hanging) or not all(one.alive for one in went_on):
            self._moving = 0
            return
        self._moving += 1
        if self._moving < _SURE:
            return
        ranks = tuple(one.rank for one in went_on)
        self._say(f"{_ranks(ranks)} {'goes' if len(ranks) == 1 else 'go'} on after {time.time() - self._since_s:.0f} s")
        for path in self._captured:
            say_over(path, time.time_ns())
        self._captured.clear()
        self._hanging.clear()
        self._moving = 0
        self._patience *= 2

    def _end_job(self) -> None:
        """What the user asked for: like a scheduler does it, first kindly."""
        self._say("ending the job (--on-hang kill)")
        os.kill(self._guarded.root, signal.SIGTERM)
        for _ in range(int(_KILL_AFTER_S / TICK_S)):
            self.pause(TICK_S)
        for one in self._ranks.all():
            if one.alive:
                os.kill(one.pid, signal.SIGKILL)
        self.pause(TICK_S)
        os.kill(self._guarded.root, signal.SIGKILL)

    # -- requests of others --------------------------------------------------------------------------------------------

    def _answer(self, standings: list[Standing]) -> None:
        """Capture for whoever asked: a supervisor of another node, or ``ddiag hang --live``."""
        for request in capture_requests(self._guarded.run):
            if request.number <= self._answered or not request.by:
                continue
            self._answered = request.number
            allowed = limits(standings, self._guarded.after_s, patience=self._patience)
            stuck = frozenset(one.rank for one in standings if one.quiet_s > allowed[one.rank] / 2)
            self._captured.append(self._capture(request, allowed, stuck))


def _ranks(ranks: tuple[int, ...]) -> str:
    """``rank 3``, ``ranks 0, 1, 2``, ``ranks 0, 1, 2, … (64)``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:4]))
    return f"ranks {shown}" if len(ranks) <= 4 else f"ranks {shown}, … ({len(ranks)})"
