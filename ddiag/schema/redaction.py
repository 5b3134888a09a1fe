"""Making evidence fit to be handed on: secrets, user names, addresses and foreign paths go, the diagnosis stays.

What is replaced is replaced by the same word everywhere (in all files of one bundle), so that two lines about one peer
still are about one peer. Kept, because they say what happened and not to whom: loopback, wildcard, link-local and
Docker's own addresses, system and package paths, host names, process ids, ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ddiag.schema.secrets import HIDDEN, redact, secret_name

PROJECT = "/project"
_KEPT_ROOTS = frozenset(
    {
        "usr",
        "opt",
        "lib",
        "lib64",
        "bin",
        "sbin",
        "dev",
        "proc",
        "sys",
        "etc",
        "run",
        "tmp",
        "project",
        "nix",
        "snap",
        "pytorch",
        "packages",
        "default_pg",
    }
)
_PACKAGES = re.compile(r"(?:site-packages|dist-packages|lib/python3\.\d+)/")
_HOME = re.compile(r"(?P<root>/(?:home|Users)/)(?P<name>[^/\s\"'\\:,;()<>]+)")
_PATH = re.compile(r"(?<![\w.:/\\])/(?P<parts>(?:[\w.+@%=-]+/)+)(?P<last>[\w.+@%=-]*)")
_MAIL = re.compile(r"\b[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}\b")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.])(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-f]{1,4}:){2,7}(?::?[0-9a-f]{1,4}){1,6}(?![\w:.])", re.IGNORECASE)
_VERSION_BEFORE = re.compile(r"(?:version|cudnn|driver|==|>=|<=|[vV])[\s:=]*$", re.IGNORECASE)
_KEPT_ADDRESS = re.compile(r"^(?:127\.|0\.0\.0\.0$|255\.255\.255\.255$|169\.254\.|172\.17\.|::1$|fe80)", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<name>[\"']?[A-Za-z][\w.-]*[\"']?)(?P<sep>\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;\"'&]+)"
)
_SCHEME = re.compile(r"\b(?P<scheme>Bearer|Basic|token)\s+[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE)


@dataclass
class Redactor:
    """Replaces alike in all texts it is given; remembers how often it had to."""

    project: str = ""
    """Absolute path of the project: below it paths are kept, as ``/project/…``."""
    users: tuple[str, ...] = ()
    """User names known beforehand; others are learnt from home folders."""
    counts: Counter[str] = field(default_factory=Counter)
    _words: dict[tuple[str, str], str] = field(default_factory=dict)
    _seen: Counter[str] = field(default_factory=Counter)
    """Different words of each kind so far."""

    def text(self, text: str) -> str:
        """*text* fit to be handed on."""
        text = self._assigned(redact(_SCHEME.sub(self._count("secrets", lambda m: f"{m['scheme']} {HIDDEN}"), text)))
        text = _MAIL.sub(
            self._count("e-mail addresses", lambda m: self._word("mail", m[0], "person{}@example.org")), text
        )
        if self.project:
            text = text.replace(self.project.rstrip("/") + "/", f"{PROJECT}/")
        text = _HOME.sub(self._count("user names", self._home), text)
        text = self._named_users(text)
        text = _PATH.sub(self._path, text)
        text = _MAC.sub(self._count("addresses", lambda m: self._word("mac", m[0].lower(), "02:00:00:00:{:04x}")), text)
        text = _IPV4.sub(lambda m: self._address(m, text), text)
        return _IPV6.sub(self._count("addresses", self._six), text)

    def value(self, value: object) -> object:
        """The same for every text in a JSON-like value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self._of(key, item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.value(item) for item in value)
        return value

    def _of(self, key: object, item: object) -> object:
        if isinstance(key, str) and isinstance(item, str) and secret_name(key):
            self.counts["secrets"] += 1
            return HIDDEN
        return self.value(item)

    def _assigned(self, text: str) -> str:
        def hide(match: re.Match[str]) -> str:
            name, value = match["name"].strip("\"'"), match["value"].strip("\"'")
            if not secret_name(name) or _tells_nothing(name, value):
                return match[0]
            self.counts["secrets"] += 1
            quote = match["value"][0] if match["value"][0] in "\"'" else ""
            return f"{match['name']}{match['sep']}{quote}{HIDDEN}{quote}"

        return _ASSIGNED.sub(hide, text)

    def _home(self, match: re.Match[str]) -> str:
        return match["root"] + self._word("user", match["name"], "user{}")

    def _named_users(self, text: str) -> str:
        known = {*self.users, *(name for kind, name in self._words if kind == "user")} - _NO_USERS
        for name in sorted((name for name in known if len(name) > 2), key=len, reverse=True):
            text, times = re.subn(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", self._word("user", name, "user{}"), text)
            self.counts["user names"] += times
        return text

    def _path(self, match: re.Match[str]) -> str:
        parts, packages = match["parts"], _PACKAGES.search(match["parts"])
        first = parts.partition("/")[0]
        if packages and first not in _KEPT_ROOTS:
            return f"/packages/{parts[packages.start() :]}{match['last']}"
        if first in _KEPT_ROOTS:
            return match[0]
        home = "/".join(["", *parts.split("/")[:2], ""]) if first in ("home", "Users") else "/"
        below = parts.removeprefix(home[1:])
        if not below:
            return match[0]
        self.counts["paths"] += 1
        return f"{home}{self._word('path', parts, 'folder{}')}/{match['last']}"

    def _address(self, match: re.Match[str], text: str) -> str:
        if _KEPT_ADDRESS.match(match[0]) or _VERSION_BEFORE.search(text[max(match.start() - 16, 0) : match.start()]):
            return match[0]
        self.counts["addresses"] += 1
        return self._word("ipv4", match[0], "10.254.{high}.{low}")

    def _six(self, match: re.Match[str]) -> str:
        if _KEPT_ADDRESS.match(match[0]) or ("::" not in match[0] and match[0].count(":") != 7):
            return match[0]
        return self._word("ipv6", match[0].lower(), "2001:db8::{:x}")

    def _word(self, kind: str, found: str, form: str) -> str:
        key = (kind, found)
        if key not in self._words:
            self._seen[kind] += 1
            number = self._seen[kind]
            self._words[key] = form.format(number, high=number // 250, low=number % 250 + 1)
        return self._words[key]

    def _count(self, what: str, replace: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
        def counted(match: re.Match[str]) -> str:
            new = replace(match)
            self.counts[what] += new != match[0]
            return new

        return counted


def _tells_nothing(name: str, value: str) -> bool:
    """``tokens_per_sec: 5012``, ``Timeout waiting for key: default_pg/0``: named like a secret, but none."""
    if re.search(r"passw|pwd|secret", name, re.IGNORECASE):
        return value.lower() in _HARMLESS
    return name.lower() == "key" or value.lower() in _HARMLESS or len(value) < 8 or _NUMBER.fullmatch(value) is not None


_NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?", re.IGNORECASE)
_HARMLESS = frozenset({"", "none", "null", "true", "false", "0", "1", "***", "auto"})
_NO_USERS = frozenset({"root", "user", "ubuntu", "runner", "nobody", "docker", "slurm", "torch", "python", "train"})
"""Names that say nothing about a person, and words that logs are full of."""
