"""What each number of the report means and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

from ddiag.model.signals import Collectives, InputWait, KernelMix, Memory, Signals, StepBudget
from ddiag.plots.numbers import short, span, thousands
from ddiag.reporters.words import recording_words
from ddiag.rulekit.diagnosis import Diagnosis

RECORDED = "recorded"
SOURCES = {
    "annotation": "marked in the trace",
    RECORDED: "as the recorder saw the optimizer (or the engine) step",
    "inferred": "inferred, the evidence does not mark them",
    "window": "none marked: the whole capture counts as one step",
}


@dataclass(frozen=True)
class Definition:
    term: str
    text: str


PARTS = (
    "Each instant of a step is counted once: {what} first, then exposed communication, copies, and, while the device "
    "is idle, what the host was doing. The parts sum to the step. Means are over steady steps and ranks."
)
PARTS_RECORDED = (
    "Each instant of a step is counted once: compute first (the training thread in forward, backward or the optimizer, "
    "while it does not wait), then exposed communication, input, and what else the host did. The parts sum to the "
    "step. Means are over steady steps and ranks."
)
OWN = "Step minus waiting for other ranks: what this rank itself takes."
EXPOSED = "Communication while no compute kernel runs on that rank; overlapped communication is hidden under compute."
EXPOSED_RECORDED = (
    "Communication while the training thread of that rank does not compute; overlapped communication is hidden under "
    "compute."
)
MATCHED = (
    "Calls are matched over {ranks} ranks. Transfer is the shortest duration of a call over its ranks; what a rank "
    "spends beyond it is waiting. Bandwidth is computed from transfer."
)
UNMATCHED = (
    "Calls could not be matched across ranks, so waiting for other ranks cannot be told from transfer and no bandwidth "
    "is given."
)
BANDWIDTH = (
    "As nccl-tests defines it: message size ÷ transfer time × a factor of the operation and group size, so that it "
    "compares with the link speed of the hardware. GB/s are 10⁹ bytes per second."
)
CLOCKS = "Ranks are aligned by the ends of shared collectives, to within {error} µs; skews below {noise} µs are noise."
INPUT = "Time the device is idle while the training thread fetches the next batch; what compute hides is not counted."
INPUT_RECORDED = "Time in which the training thread waits for the next batch of the data loader."
KERNELS = "Summed over kernels: kernels that run side by side count twice here, unlike in the parts of a step."
MEMORY = "From allocator events: allocated is held by tensors, reserved is held by the caching allocator."
MEMORY_RECORDED = (
    "Read at the end of steps: of a device, what its caching allocator says; of a host, what each process has."
)


def definitions(diagnosis: Diagnosis, signals: Signals) -> tuple[Definition, ...]:
    """What each figure of this report means and how sure it is; only what the report shows."""
    found: list[Definition] = []
    budget, communication, coverage = signals.get(StepBudget), signals.get(Collectives), diagnosis.coverage
    recorded = coverage.recorded and (budget is None or budget.source in (RECORDED, "window"))
    if budget is not None:
        found += _step_notes(budget, recorded=recorded)
    if communication is not None:
        found += _communication_notes(communication, recorded=recorded)
    for family, term, text in (
        (InputWait, "Input", INPUT_RECORDED if recorded else INPUT),
        (KernelMix, "Kernel time", KERNELS),
        (Memory, "Memory", MEMORY_RECORDED if coverage.recorded else MEMORY),
    ):
        if signals.has(family):
            found.append(Definition(term, text))
    if coverage.recording_cost is not None:
        found.append(Definition("Cost of recording", recording_words(coverage.recording_cost)))
    return (*found, *(Definition("Note", _sentence(note)) for note in coverage.notes))


def _sentence(note: str) -> str:
    return note if note.endswith((".", "…")) else f"{note}."


def _step_notes(budget: StepBudget, *, recorded: bool) -> list[Definition]:
    source = SOURCES.get(budget.source, budget.source)
    notes = [Definition("Steps", f"{source[:1].upper()}{source[1:]}" + (f" ({budget.note})." if budget.note else "."))]
    if budget.excluded_steps:
        shown = ", ".join(map(str, budget.excluded_steps[:8]))
        more = f", … ({len(budget.excluded_steps)} in all)" if len(budget.excluded_steps) > 8 else ""
        warm = f"; warm-up takes {span(budget.warmup_ms)}" if budget.warmup_ms else ""
        steps = "Step" if len(budget.excluded_steps) == 1 else "Steps"
        notes.append(Definition("Left out", f"{steps} {shown}{more}: warm-up or cut off by the capture{warm}."))
    what = "device kernels" if budget.on_device else "CPU operators (the trace has no device activity)"
    parts = PARTS_RECORDED if recorded else PARTS.format(what=what)
    return [*notes, Definition("Parts of a step", parts), Definition("Own time", OWN)]


def _communication_notes(communication: Collectives, *, recorded: bool) -> list[Definition]:
    ranks, error = communication.matched_ranks, communication.clock_error_us
    notes = [Definition("Exposed communication", EXPOSED_RECORDED if recorded else EXPOSED)]
    text = MATCHED.format(ranks=thousands(ranks, 0)) if ranks > 1 else UNMATCHED
    notes += [Definition("Waiting and transfer", text), Definition("Bus bandwidth", BANDWIDTH)]
    if error is not None:
        notes.append(Definition("Clocks", CLOCKS.format(error=short(error), noise=short(3 * error))))
    return notes
