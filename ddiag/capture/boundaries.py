"""Which optimizer step ends a training step: found out without marks of the user.

With one optimizer every step of it ends a training step. With several (a GAN, one per sub-module) the last of a round
does, and that the round was over is known only when its first optimizer steps again. So the first step is held back
until the second optimizer step shows which case it is; from then on the end is known at once.
"""

from __future__ import annotations

from enum import Enum


class Turn(Enum):
    """What an optimizer's step means for the training step."""

    HOLD = "perhaps the end of the first step"
    EXTEND = "it was not: this optimizer belongs to the same step"
    CONFIRM = "it was; and this optimizer is the first of the next, not its end"
    CONFIRM_AND_CLOSE = "it was; and this is the end of the next"
    CLOSE = "the end of a step"
    INSIDE = "one of several optimizers of a step, not the last"


_CLOSE = Turn.CLOSE
"""Found once: a member of an enum costs more to look up than all else that the end of a usual step asks here."""


class Boundaries:
    def __init__(self) -> None:
        self._closer: int | None = None
        self._round: list[int] = []
        self.by_engine = False
        """An engine (or the user) says where steps end; optimizers no longer matter."""

    @property
    def holding(self) -> bool:
        """The first step is held back."""
        return self._closer is None and bool(self._round)

    def after(self, optimizer: int) -> Turn:
        """*optimizer* (any identity) has stepped, or was made to skip."""
        if self.by_engine:
            return Turn.INSIDE
        if self._closer is None:
            return self._learn(optimizer)
        if optimizer == self._closer or optimizer in self._round:
            # The second case: the one that used to close no longer steps; this round ends with the one seen twice.
            self._closer = optimizer
            self._round.clear()
            return _CLOSE
        self._round.append(optimizer)
        return Turn.INSIDE

    def _learn(self, optimizer: int) -> Turn:
        if not self._round:
            self._round.append(optimizer)
            return Turn.HOLD
        if optimizer not in self._round:
            self._round.append(optimizer)
            return Turn.EXTEND
        self._closer = self._round[-1]
        self._round.clear()
        if optimizer == self._closer:
            return Turn.CONFIRM_AND_CLOSE
        self._round.append(optimizer)
        return Turn.CONFIRM

    def retire(self, optimizer: int) -> bool:
        """*optimizer* no longer exists; if it ended steps, find out anew which one does. True: the held step stands."""
        held = self.holding and optimizer in self._round
        if held or optimizer == self._closer:
            self._closer = None
            self._round.clear()
        return held

    def leave_to_engine(self) -> None:
        self.by_engine = True
        self._round.clear()
