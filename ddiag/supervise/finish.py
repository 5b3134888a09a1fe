"""After the job: the manifest is closed, the run diagnosed and, when asked for, copied away."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace

from ddiag.schema.folder import REPORT, write_manifest
from ddiag.schema.placement import settle
from ddiag.supervise import report, upload
from ddiag.supervise.attempts import attempts, why_no_ranks
from ddiag.supervise.job import Ended
from ddiag.supervise.run_folder import Place, read_nodes, write_node
from ddiag.supervise.side_process import Limits
from ddiag.supervise.signals import ENDING

_OTHERS_LIMIT_S = 30.0
"""How long the founder waits for the supervisors of other nodes before it diagnoses."""
_LOOK_AGAIN_S = 0.5


@dataclass(frozen=True)
class Finish:
    """What is left to do for *place*."""

    place: Place
    ended: Ended
    mask: Set[int]
    """What was held back of signals before we did."""
    say: Callable[[str], None]

    def run(self, *, diagnose: bool, url: str | None) -> None:
        """Gather this node's rings and close its part; the founder does the rest once the other nodes have ended."""
        run = self.place.path
        settle(run)
        write_node(self.place, self.ended.shell_code)
        if not self.place.founder:
            return
        hurried = self.ended.asked_to_end or (diagnose and not self._others_ended())
        found = attempts(run)
        ended = replace(
            self.place.manifest,
            end_wall_ns=time.time_ns(),
            exit_code=self.ended.shell_code,
            asked_to_end=signal.Signals(self.ended.asked_by).name if self.ended.asked_by else None,
            attempts=found,
            notes=self._notes(),
        )
        write_manifest(run, ended)
        if not found:
            self.say(f"nothing to diagnose: {why_no_ranks(run, ended.argv)}")
        elif diagnose:
            self._diagnose(Limits(self.mask, self._limit_s(report.LIMIT_S, hurried=hurried)))
        if url is not None:
            self._upload(url, Limits(self.mask, self._limit_s(upload.LIMIT_S, hurried=hurried)))

    @property
    def _interrupted(self) -> bool:
        return self.ended.asked_by == signal.SIGINT

    def _limit_s(self, usual_s: float, *, hurried: bool) -> float:
        if self._interrupted:
            return report.INTERRUPTED_LIMIT_S
        return report.HURRIED_LIMIT_S if hurried else usual_s

    def _others_ended(self) -> bool:
        """Wait a while for the other nodes; False when somebody wants us to end instead."""
        until = time.monotonic() + (1.0 if self.ended.asked_to_end else _OTHERS_LIMIT_S)
        ended: set[str] = set()
        while time.monotonic() < until:
            nodes = read_nodes(self.place.path, but=ended)
            ended |= {node.key for node in nodes if node.end_wall_ns is not None}
            if all(node.end_wall_ns is not None for node in nodes):
                break
            if signal.sigtimedwait(ENDING, _LOOK_AGAIN_S) is not None:
                return False
        return True

    def _notes(self) -> tuple[str, ...]:
        """What a reader of the folder should know."""
        left = [node.host for node in read_nodes(self.place.path) if node.end_wall_ns is None]
        return (f"still running or killed when the report was made: {', '.join(left)}",) if left else ()

    def _diagnose(self, limits: Limits) -> None:
        run = self.place.path
        code = self.ended.shell_code
        how = f"the job ended with exit code {code}" if code else "the job has ended"
        self.say(f"{how}; diagnosing it{' (Ctrl-C: not now)' if self._interrupted else ''}")
        why_not = report.analyze(run, limits)
        if why_not:
            self.say(f"no report: {why_not}. Make it with: ddiag analyze {run}")
            return
        for line in report.summary(run):
            self.say(line)
        self.say(f"report: {run / REPORT}")

    def _upload(self, url: str, limits: Limits) -> None:
        run = self.place.path
        why_not = upload.upload(run, url, limits)
        target = f"{url.rstrip('/')}/{run.name}"
        self.say(f"not copied to {target}: {why_not}; it is in {run}" if why_not else f"copied to {target}")
