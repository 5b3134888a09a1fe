"""Phases and steps as hooks report them."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

from ddiag.capture.recorder import Recorder
from ddiag.schema.phases import Flag, Kind, Mark, Phase, State
from ddiag.schema.steps import StepFlag, StepRecord
from tests.unit.capture.reading import phases, records, steps_of


def _step(active: Recorder, optimizer: int = 1) -> None:
    token = active.begin_backward()
    assert token is not None
    active.end_backward(token, failed=False)
    active.begin_optimizer(optimizer)
    active.end_optimizer(optimizer)


def _total(step: StepRecord) -> int:
    return sum(step.phase_ns)


def test_phases_nest_and_time_counts_once(active: Recorder) -> None:
    outer = active.enter(Phase.OPTIMIZER)
    time.sleep(0.004)
    inner = active.enter(Phase.CLIP)
    time.sleep(0.008)
    active.leave(inner)
    active.leave(outer)
    active.engine_step()
    (step,) = steps_of(active.files)
    assert step.phase_ns[Phase.OPTIMIZER] >= 4e6
    assert step.phase_ns[Phase.CLIP] >= 8e6
    assert step.phase_ns[Phase.OPTIMIZER] < step.phase_ns[Phase.CLIP] + 4e6
    assert _total(step) == step.end_ns - step.start_ns
    outer_record, inner_record = records(active.files, Kind.PHASE)
    assert outer_record.start_ns <= inner_record.start_ns <= inner_record.end_ns <= outer_record.end_ns


def test_a_phase_left_by_an_exception_is_closed_with_the_one_around_it(active: Recorder) -> None:
    outer = active.enter(Phase.OPTIMIZER)
    active.enter(Phase.CLIP)
    active.leave(outer, failed=True)
    assert active.current_phase == Phase.NONE
    again = active.enter(Phase.INPUT)
    active.leave(outer)
    assert active.current_phase == Phase.INPUT
    active.leave(again)
    assert active.current_phase == Phase.NONE


def test_what_no_phase_covers_is_other(active: Recorder) -> None:
    active.leave(active.enter(Phase.INPUT))
    time.sleep(0.005)
    active.engine_step()
    (step,) = steps_of(active.files)
    assert step.phase_ns[Phase.OTHER] >= 5e6
    assert step.phase_ns[Phase.NONE] == 0


def test_the_first_step_begins_with_its_first_phase(active: Recorder) -> None:
    time.sleep(0.01)
    active.leave(active.enter(Phase.INPUT))
    active.engine_step()
    (step,) = steps_of(active.files)
    assert step.end_ns - step.start_ns < 10e6


def test_a_plain_forward_is_inferred_and_a_marked_one_is_not(active: Recorder) -> None:
    active.leave(active.enter(Phase.INPUT))
    time.sleep(0.003)
    _step(active)
    active.leave(active.enter(Phase.INPUT))
    token = active.begin_forward(grad=True, training=True)
    assert token is not None
    active.leave(token)
    _step(active)
    active.close()
    forwards = [record for record in records(active.files, Kind.PHASE) if record.op == Phase.FORWARD]
    assert [bool(record.flags & Flag.INFERRED) for record in forwards] == [True, False]
    assert forwards[0].end_ns - forwards[0].start_ns >= 3e6
    assert steps_of(active.files)[0].phase_ns[Phase.FORWARD] >= 3e6


def test_recomputation_inside_backward_is_part_of_it(active: Recorder) -> None:
    token = active.begin_backward()
    assert token is not None
    assert active.begin_forward(grad=True, training=True) is None
    assert active.begin_backward() is None
    active.end_backward(token, failed=False)
    assert phases(active.files) == ["BACKWARD"]
    assert active.micro_step == 1


def test_a_forward_left_by_an_exception_does_not_swallow_the_rest(active: Recorder) -> None:
    active.begin_forward(grad=True, training=True)
    _step(active)
    assert active.current_phase == Phase.NONE
    assert records(active.files, Kind.PHASE)[0].state == State.FAILED


def test_accumulation_is_one_step_of_several_backward_passes(active: Recorder) -> None:
    for _ in range(3):
        for _ in range(4):
            token = active.begin_backward()
            assert token is not None
            active.end_backward(token, failed=False)
        active.begin_optimizer(1)
        active.end_optimizer(1)
    active.close()
    assert [step.micro_steps for step in steps_of(active.files)] == [4, 4, 4]
    assert {record.micro_step for record in records(active.files, Kind.PHASE)} == {0, 1, 2, 3, 4}


def test_several_optimizers_are_one_step(active: Recorder) -> None:
    for _ in range(4):
        _step(active, 1)
        _step(active, 2)
    active.close()
    found = steps_of(active.files)
    assert [step.step for step in found] == [0, 1, 2, 3]
    assert [step.micro_steps for step in found] == [2, 2, 2, 2]
    assert all(step.flags & StepFlag.SEVERAL_OPTIMIZERS for step in found)
    for before, after in pairwise(found):
        assert before.end_ns == after.start_ns
    assert all(_total(step) == step.end_ns - step.start_ns for step in found)


def test_the_only_step_of_a_run_is_not_lost(active: Recorder) -> None:
    _step(active)
    assert steps_of(active.files) == []
    active.close()
    assert len(steps_of(active.files)) == 1


def test_optimizers_that_wrap_another_step_once(active: Recorder) -> None:
    for _ in range(3):
        active.begin_optimizer(1)
        active.begin_optimizer(2)
        active.end_optimizer(2)
        active.end_optimizer(1)
    active.close()
    assert len(steps_of(active.files)) == 3
    assert phases(active.files) == ["OPTIMIZER"] * 3


def test_an_optimizer_that_raised_is_forgotten(active: Recorder) -> None:
    _step(active)
    active.begin_optimizer(1)
    active.leave(active._optimizers[-1][1], failed=True)
    for _ in range(3):
        _step(active)
    active.close()
    assert len(steps_of(active.files)) == 4


def test_a_skipped_step_is_a_step_and_says_so(active: Recorder) -> None:
    _step(active)
    active.begin_optimizer(1)
    active.end_optimizer(1, skipped=True)
    active.close()
    first, second = steps_of(active.files)
    assert not first.flags & StepFlag.OPTIMIZER_SKIPPED
    assert second.flags & StepFlag.OPTIMIZER_SKIPPED
    assert [record.op for record in records(active.files, Kind.MARK)] == [Mark.OPTIMIZER_SKIPPED]


def test_an_engine_overrules_optimizers_also_in_hindsight(active: Recorder) -> None:
    for _ in range(3):
        _step(active, 1)
        _step(active, 2)
        active.engine_step()
    active.close()
    found = steps_of(active.files)
    assert [step.step for step in found] == [0, 1, 2]
    assert [step.micro_steps for step in found] == [2, 2, 2]
    assert all(step.flags & StepFlag.ENGINE_BOUNDARY for step in found)


def test_a_phase_open_across_the_boundary_is_shared_by_both_steps(active: Recorder) -> None:
    token = active.enter(Phase.OPTIMIZER)
    time.sleep(0.003)
    active.engine_step()
    time.sleep(0.003)
    active.leave(token)
    active.engine_step()
    first, second = steps_of(active.files)
    assert first.phase_ns[Phase.OPTIMIZER] >= 3e6
    assert second.phase_ns[Phase.OPTIMIZER] >= 3e6


def test_evaluation_lasts_until_training_resumes(active: Recorder) -> None:
    train, held_out = 1, 2
    active.asks_for_data(train, grad=True)
    _step(active)
    active.asks_for_data(held_out, grad=False)
    active.leave(active.enter(Phase.INPUT))
    active.begin_forward(grad=False, training=False)
    assert active.current_phase == Phase.EVALUATION
    active.asks_for_data(train, grad=True)
    assert active.current_phase == Phase.NONE
    _step(active)
    active.close()
    assert [bool(step.flags & StepFlag.EVALUATION) for step in steps_of(active.files)] == [False, True]


def test_after_eval_another_data_set_is_evaluation_even_with_gradients_on(active: Recorder) -> None:
    active.asks_for_data(1, grad=True)
    _step(active)
    active.eval_called = True
    active.asks_for_data(2, grad=True)
    assert active.current_phase == Phase.EVALUATION
    _step(active)
    assert not active.eval_called


def test_frozen_layers_set_to_eval_are_no_evaluation(active: Recorder) -> None:
    for _ in range(3):
        active.asks_for_data(1, grad=True)
        active.eval_called = True
        _step(active)
    active.close()
    assert not any(step.flags & StepFlag.EVALUATION for step in steps_of(active.files))


def test_a_teacher_without_gradients_is_not_evaluation_in_training_mode(active: Recorder) -> None:
    token = active.begin_forward(grad=False, training=True)
    assert token is not None
    assert active.current_phase == Phase.FORWARD


def test_other_threads_leave_records_but_do_not_touch_the_step(active: Recorder) -> None:
    mine = active.enter(Phase.FORWARD)

    def save() -> None:
        token = active.enter(Phase.CHECKPOINT)
        assert active.current_phase == Phase.FORWARD
        active.leave(token)

    other = threading.Thread(target=save)
    other.start()
    other.join()
    active.leave(mine)
    active.engine_step()
    (step,) = steps_of(active.files)
    assert step.phase_ns[Phase.CHECKPOINT] == 0
    first, second = records(active.files, Kind.PHASE)
    assert first.thread == threading.get_native_id() != second.thread
    assert second.state == State.DONE


def test_training_on_another_thread_is_followed(active: Recorder) -> None:
    thread = threading.Thread(target=lambda: [active.begin_optimizer(1), active.end_optimizer(1), _step(active)])
    thread.start()
    thread.join()
    active.close()
    assert len(steps_of(active.files)) == 2
    assert steps_of(active.files)[1].micro_steps == 1
