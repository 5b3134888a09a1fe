"""The job's process: started like a shell would, waited for, told every signal that only we got."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from ddiag.errors import DdiagError
from ddiag.supervise.signals import ENDING, STOPPING, WATCHED, Witness

NOT_FOUND, NOT_EXECUTABLE = 127, 126


class CannotStartError(DdiagError):
    """The command does not exist or cannot be executed."""

    def __init__(self, command: Sequence[str], number: int) -> None:
        self.exit_code = NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE
        what = "command not found" if number == errno.ENOENT else os.strerror(number)
        super().__init__(f"{command[0]}: {what}")


@dataclass(frozen=True)
class Ended:
    """How the job ended."""

    code: int
    """What it returned; 0 when a signal killed it."""
    signal: int
    """What killed it; 0 when it returned by itself."""
    asked_to_end: bool
    """Somebody sent a signal that ends jobs, so time may be short."""
    asked_by: int = 0
    """The first signal of those that only say "end"; 0 when none came."""

    @property
    def shell_code(self) -> int:
        return 128 + self.signal if self.signal else self.code


class Job:
    """The command as our child, in our process group, with our standard streams and every other inherited file."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], mask: Set[int], witness: Witness
    ) -> None:
        """Start it; *mask* is what was held back before we did. Raises :class:`CannotStartError`."""
        self._witness = witness
        self._asked_to_end = False
        self._asked_by = 0
        self._stopped = self._want_stop = False
        children_ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if children_ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else the kernel throws the exit code away
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            if children_ignored:
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            _become(command, environment, mask, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            number = int.from_bytes(answer.read(4), "little")
        if number:
            os.waitpid(self.pid, 0)
            raise CannotStartError(command, number)

    def wait(self) -> Ended:
        """Until it has ended. Signals are looked at as they come."""
        while True:
            number = signal.sigwaitinfo(WATCHED | {signal.SIGCHLD}).si_signo
            if number != signal.SIGCHLD:
                self._pass_on(number)
                continue
            ended = self._child_changed()
            if ended is not None:
                self._witness.dismiss()
                return ended

    def _pass_on(self, number: int) -> None:
        self._asked_to_end |= number in ENDING
        if number in STOPPING and not self._asked_by:
            self._asked_by = number
        if self._witness.got(number):
            self._witness = self._witness.renew()
        else:
            os.kill(self.pid, number)
        if number == signal.SIGTSTP:
            self._want_stop = True
            self._stop_with_job()

    def _child_changed(self) -> Ended | None:
        """What became of the child; None when it is still there."""
        while True:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
            if found is None:
                return None
            if found.si_code == os.CLD_EXITED:
                return Ended(found.si_status, 0, self._asked_to_end, self._asked_by)
            if found.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                return Ended(0, found.si_status, self._asked_to_end, self._asked_by)
            self._stopped = found.si_code == os.CLD_STOPPED
            self._stop_with_job()

    def _stop_with_job(self) -> None:
        """Ctrl-Z: the shell shows the job as stopped when we stop, which must not be before the job does."""
        if self._stopped and self._want_stop:
            self._stopped = self._want_stop = False
            os.kill(os.getpid(), signal.SIGSTOP)


def run_instead(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become the command; raises :class:`CannotStartError`, else does not return."""
    _signals_as_given(set())
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        raise CannotStartError(command, error.errno or errno.ENOENT) from error


def _become(command: Sequence[str], environment: Mapping[str, str], mask: Set[int], writer: int) -> None:
    """In the child: exec, or tell the parent why not. Never returns."""
    number = errno.ENOEXEC
    try:
        _signals_as_given(mask)
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        number = error.errno or number
    finally:
        os.write(writer, number.to_bytes(4, "little"))
        os.kill(os.getpid(), signal.SIGKILL)


def _signals_as_given(mask: Set[int]) -> None:
    """Undo what Python does to signals when it starts, so that the command gets them as we did."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
