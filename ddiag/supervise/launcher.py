"""What kind of launch line a command is, and a name for its run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
}
_PROGRAMS = {
    **{name: name for name in ("torchrun", "deepspeed", "accelerate", "srun")},
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun"), "mpirun"),
    **dict.fromkeys(("sh", "bash", "zsh", "dash", "ksh", "fish"), "shell"),
}
_WRAPPERS = (
    "env",
    "nice",
    "ionice",
    "numactl",
    "taskset",
    "stdbuf",
    "time",
    "timeout",
    "nohup",
    "setsid",
    "uv",
    "poetry",
)
"""Programs that start another one; what they start says what the job is."""


def launcher_word(command: Sequence[str]) -> str:
    """torchrun, python, deepspeed, accelerate, mpirun, srun, shell or other."""
    for place, word in enumerate(command):
        program = PurePath(word).name
        if program in _PROGRAMS:
            return _PROGRAMS[program]
        if _is_python(program):
            return _python_launcher(command[place + 1 :])
        if program not in _WRAPPERS and command[0] == word:
            return "other"
    return "other"


def _is_python(program: str) -> bool:
    return program.startswith(("python", "pypy"))


def _python_launcher(arguments: Sequence[str]) -> str:
    for place, word in enumerate(arguments):
        if word == "-m" and place + 1 < len(arguments):
            return _MODULES.get(arguments[place + 1], "python")
        if not word.startswith("-"):
            return _PROGRAMS.get(PurePath(word).name, "python")
    return "python"


def run_name(command: Sequence[str]) -> str:
    """The script's name, else the program's."""
    for word in command:
        path = PurePath(word)
        if path.suffix == ".py":
            return path.stem
    for place, word in enumerate(command):
        if word == "-m" and command[place + 1 : place + 2] and command[place + 1] not in _MODULES:
            return command[place + 1]
    return PurePath(command[0]).name


def is_isolated(command: Sequence[str]) -> bool:
    """A Python in the command ignores PYTHONPATH (``-I``, ``-E``) or sitecustomize (``-S``)."""
    python = False
    for word in command:
        if _is_python(PurePath(word).name):
            python = True
        elif python and word.startswith("-") and not word.startswith("--"):
            if any(flag in word[1:].split("X")[0].split("W")[0] for flag in "IES"):
                return True
            if "m" in word or "c" in word:
                return False
        else:
            python = False
    return False
