"""What the recorder costs a training: ``python -m tools.bench_recorder`` (``make bench`` runs it).

Two ranks (gloo) train with the recorder on and off, in every tier this torch has, TraceML beside it where it can be
installed. CPU time of the training thread is what is judged: it is what makes a step longer, and wall time on a shared
machine shows the others' work. Four measures say what the recorder adds to a step; the verdict names the one that
decided, which is the first of these that could:

* blocks: the recorder begins and ends between blocks of steps;
* turns: its hooks are switched from step to step, and steps without them are compared with each other as well: where
  these differ by more than the limit, the machine is too busy for this measure; else it decides, or says it cannot;
* instructions (``--instructions``): counted by Valgrind, the same however busy the machine is;
* ledger: how often each operation happens in a step, times what it costs in a loop (caches warm: a lower bound).

Exit code 1 when a limit is broken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

from tools import bench_recorder_instructions as instructions
from tools.bench_recorder_measure import (
    TRACEML,
    Estimate,
    Found,
    Wanted,
    blocks,
    measure,
    outside,
    tiers_of,
    torchrun,
    traceml,
    turns,
)

STEP_SHARE = 0.01
MARK_US = 2.0
CALL_US = {"native": 2.0, "hooks": 15.0}
"""CPU time that the kernel or the hooks add to the issuing thread per asynchronous collective.

What it takes to be told in Python of an end by a backend's thread is given beside it: the two threads take turns at the
interpreter, which costs several of the machine's hand-offs. Hooks pay it on host backends alone, the native kernel
never. The dispatcher is held to its share of the step.
"""
RSS_MB = 10.0
OUTSIDE_SHARE = 0.01
SHORTEST_STEP_MS = 50.0
CLOCKS = {"thread": "CPU of the training thread", "process": "CPU of all threads", "wall": "wall time"}
JUDGED = "thread"


class Verdicts:
    """Prints lines and remembers broken limits."""

    def __init__(self) -> None:
        self.failed = False

    def line(self, what: str, figure: str, judged: str = "") -> None:
        self.failed = self.failed or judged.startswith("FAIL")
        print(f"  {what:<44}{figure:<34}{judged}", flush=True)

    def at_most(self, what: str, value: float, limit: float, unit: str) -> None:
        judged = "PASS" if value <= limit else "FAIL"
        self.line(what, f"{value:.2f} {unit} (limit {limit:g})", judged)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench_recorder", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=32, help="counted steps of a block")
    parser.add_argument("--rows", type=int, default=0, help="of a batch: 256 make steps of 55 ms, 512 of 110")
    parser.add_argument("--python", type=os.path.abspath, default=sys.executable, help="whose torch is measured")
    parser.add_argument("--tiers", help="comma-separated; default: all this torch has")
    parser.add_argument("--instructions", action="store_true", help="count instructions as well (minutes)")
    parser.add_argument("--no-traceml", action="store_true")
    parser.add_argument("--no-outside", action="store_true", help="leave out the supervisor and the sampler")
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f} before the benchmark")
    verdicts = Verdicts()
    unable = instructions.why_not() if options.instructions else "not asked for: --instructions"
    for tier in options.tiers.split(",") if options.tiers else tiers_of(options.python):
        # Each in a process group of its own: a native kernel can be stopped, not unloaded.
        found = measure(
            torchrun(options.python), Wanted(["off", tier], options.rounds, options.steps, rows=options.rows)
        )
        counted = None if unable else instructions.count(options.python, tier, found[0]["rows"])
        report(found, tier, counted, verdicts)
        if unable:
            verdicts.line("instructions", f"not counted: {unable}")
    if options.python == sys.executable and not options.no_outside:
        supervisor(outside(options.python), verdicts)
    if not options.no_traceml:
        beside(traceml(options.python, options.rounds, options.steps), verdicts)
    return int(verdicts.failed)


def report(found: Found, tier: str, counted: instructions.Instructions | None, verdicts: Verdicts) -> None:
    off = {clock: statistics.median(one["off"][clock] for rank in found for one in rank["rounds"]) for clock in CLOCKS}
    sampled = statistics.mean(rank["sampled"] for rank in found)
    print(f"tier {tier}: {len(found[0]['rounds'])} rounds on {len(found)} ranks; a step has 34 collectives and takes")
    print(
        f"  {off['thread']:.1f} ms CPU of the training thread, {off['process']:.1f} of all, {off['wall']:.1f} ms wall"
    )
    if off[JUDGED] < SHORTEST_STEP_MS:
        print(f"  that is shorter than {SHORTEST_STEP_MS:g} ms: shares are overstated")
    if sampled < 1:
        print(f"  the tier looked at {sampled:.1%} of the steps; means over all steps are given")
    if counted is not None:
        for what in ("collective", "wait", "mark"):
            verdicts.line(f"instructions per {what}, all threads", f"{getattr(counted, what):,.0f}")
        looked = f", {counted.looked:,.0f} in one looked at" if sampled < 1 else ""
        verdicts.line("instructions per step", f"{counted.added:,.0f}{looked}, on {counted.step:,.0f}")
    judge_step(found, tier, None if counted is None else counted.share(sampled), off[JUDGED], verdicts)
    parts(found, tier, verdicts)


def judge_step(found: Found, tier: str, counted: float | None, step_ms: float, verdicts: Verdicts) -> None:
    """The four measures, and what the first of them that decides says."""
    by_blocks = shares(found, tier, verdicts)
    by_turns, control = turns(found, "on", JUDGED), turns(found, "again", JUDGED)
    verdicts.line("step by turns", str(by_turns))
    verdicts.line("  two kinds of steps without it differ by", str(control))
    booked = ledger(found, step_ms, verdicts)
    added, least, most = (share * step_ms * 1e3 for share in (by_turns.share, by_turns.low, by_turns.high))
    verdicts.line("  added to each step", f"{added:.0f} µs  [{least:.0f}, {most:.0f}]")
    decisions = [("blocks", by_blocks.judge(STEP_SHARE) if by_blocks.high < STEP_SHARE else "")]
    if control.within(STEP_SHARE):
        decisions.append(("turns", by_turns.judge(STEP_SHARE) or "UNDECIDED"))
    if counted is not None:
        verdicts.line("step by instructions", f"{counted:+.2%}")
        decisions.append(("instructions", "PASS" if counted < STEP_SHARE else "FAIL"))
    decisions.append(("ledger", "PASS" if booked < STEP_SHARE else "FAIL"))
    by, judged = next((by, judged) for by, judged in decisions if judged)
    verdicts.line(f"the step is longer by less than {STEP_SHARE:.0%}", f"decided by {by}", judged)


def shares(found: Found, mode: str, verdicts: Verdicts) -> Estimate:
    """What blocks say; the judged clock's."""
    estimates = {clock: blocks(found, mode, clock) for clock in CLOCKS}
    for clock, what in CLOCKS.items():
        verdicts.line(f"step by blocks, {what}", str(estimates[clock]))
    return estimates[JUDGED]


def ledger(found: Found, step_ms: float, verdicts: Verdicts) -> float:
    """Operations of one step times their cost in a loop, as a share of the step."""
    cost = {name: _least(found, name) for name in ("mark", "process", "wait", "step_end", "switch")}
    sampled = statistics.mean(rank["sampled"] for rank in found)
    counts = found[0]["operations"]
    rows = [
        ("phase marks", 2 * counts.get("phase", 0), cost["mark"]),
        ("collectives, all threads", counts.get("collective", 0) * sampled, cost["process"]),
        ("waits", counts.get("wait", 0), cost["wait"]),
        ("other records", counts.get("other", 0), cost["mark"]),
        ("end of the step", 1, cost["step_end"]),
        ("coming and going of the tier", sampled if sampled < 1 else 0, cost["switch"]),
    ]
    total_us = 0.0
    for what, count, each_us in rows:
        total_us += count * each_us
        if count:
            verdicts.line(f"  ledger: {what}", f"{count:.1f} × {each_us:.2f} = {count * each_us:.1f} µs")
    share = total_us / (step_ms * 1e3)
    verdicts.line("step by ledger", f"{total_us:.0f} µs = {share:.2%}")
    return share


def _least(found: Found, name: str) -> float:
    return min((rank["micro"][name] for rank in found if rank["micro"][name] is not None), default=0.0)


def parts(found: Found, tier: str, verdicts: Verdicts) -> None:
    if tier in CALL_US:
        verdicts.at_most("per async collective", _least(found, "alone"), CALL_US[tier], "µs")
    else:
        verdicts.line("per async collective, when looked at", f"{_least(found, 'alone'):.2f} µs")
    if tier != "native":
        verdicts.line("  with its end told by gloo's threads", f"{_least(found, 'issue'):.2f} µs")
        verdicts.line("  a hand-off between two Python threads", f"{_least(found, 'handoff'):.2f} µs")
    verdicts.line("per async collective, all threads", f"{_least(found, 'process'):.2f} µs")
    verdicts.line("per wait", f"{_least(found, 'wait'):.2f} µs")
    verdicts.at_most("per phase mark", _least(found, "mark"), MARK_US, "µs")
    verdicts.at_most("resident set, rings full", max(rank["micro"]["rss_mb"] for rank in found), RSS_MB, "MB")


def supervisor(share: float | None, verdicts: Verdicts) -> None:
    if share is None:
        verdicts.line("supervisor and sampler", "the job ended early", "UNDECIDED")
        return
    print("outside the training process")
    verdicts.at_most("supervisor and sampler, % of a core", share * 100, OUTSIDE_SHARE * 100, "%")


def beside(found: Found | str, verdicts: Verdicts) -> None:
    """TraceML's patches stay in place in its blocks and in those without, so what they cost is not counted."""
    if isinstance(found, str):
        print(found)
        return
    print(f"beside it: {TRACEML[0]} (no collectives, no per-rank ring; phases and memory of steps)")
    shares(found, "traceml", verdicts)


if __name__ == "__main__":
    sys.exit(main())
