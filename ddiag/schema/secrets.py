"""What must never be written into a run folder: values whose names say that they are secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"(token|secret|passw|credential|cookie|authoriz|bearer|signature|(^|[-_.])(auth|pwd|pat|sas|dsn)([-_.=]|$)"
    r"|(^|[-_.])(api|access|private|account|ssh|wandb|comet|hf|neptune|encryption)?[-_.]?key([-_.]?id)?([-_.=]|$))",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"(?P<name>-{0,2}[\w.+/@-]+)(?P<sep>[=:])(?P<value>.+)", re.DOTALL)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_IN_TEXT = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{12,}|xox[abp]-[\w-]{10,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})"
)


def secret_name(name: str) -> bool:
    """Whether something called *name* (an option, a variable) is probably secret."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """*text* without credentials in URLs and without well-known forms of tokens."""
    return _IN_TEXT.sub(HIDDEN, _IN_URL.sub(HIDDEN, text))


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with the values of secret options hidden: ``--api-key X``, ``--token=X``, ``KEY=X``."""
    shown, hide_next = [], False
    for word in argv:
        match = _ASSIGNED.fullmatch(word)
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
        elif match and secret_name(match["name"]):
            shown.append(f"{match['name']}{match['sep']}{HIDDEN}")
        else:
            shown.append(_inside(word))
        hide_next = word.startswith("-") and match is None and secret_name(word)
    return tuple(shown)


def _inside(word: str) -> str:
    """A word that is a little command line itself (``bash -c '…'``) is taken apart."""
    if not re.search(r"\s", word):
        return redact(word)
    parts = re.split(r"(\s+)", word)
    hidden = redact_argv(parts[::2])
    spaces = [*parts[1::2], ""]
    return "".join(part + space for part, space in zip(hidden, spaces, strict=True))


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names do not say that they are secret."""
    return {name: redact(value) for name, value in environment.items() if not secret_name(name)}
