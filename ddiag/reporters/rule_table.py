"""The root-cause table: what users see, what it means, what shows it, what to do, how to check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from ddiag.reporters.markdown_text import escaped
from ddiag.rulekit.root_causes import NO_RULE, ROOT_CAUSES
from ddiag.rulekit.rule import LoadedRule
from ddiag.rulekit.rule_docs import limit_docs, verify_text
from ddiag.rulekit.runner import family_words

FAMILY_TITLES = {
    "dd1": "Input",
    "dd2": "Host and launch",
    "dd3": "Compute",
    "dd4": "Communication",
    "dd5": "Skew and stragglers",
    "dd6": "Memory",
    "dd7": "Device, link and node",
    "dd8": "Configuration",
    "dd9": "Hangs and crashes",
    "dd10": "Offload",
    "dd11": "Numerics",
}


def rule_table(rules: Sequence[LoadedRule]) -> str:
    """The whole table as Markdown, one section per family."""
    lines = [
        "# Root-cause table",
        "",
        "Generated from the rule files by `python -m tools.gen_rule_docs`; do not edit. "
        "`ddiag rules show DD101` prints one rule's runbook and limits.",
        "",
        f"{len(rules)} rules. RC ids name root causes: rules that share one detect it from different evidence and are "
        "merged into one finding when they blame the same culprit.",
    ]
    for family, members in groupby(rules, key=lambda rule: rule.family):
        lines += ["", f"## {family_title(family)}", ""]
        lines += ["| rule | symptom | cause | evidence | fix | verify |", "|---|---|---|---|---|---|"]
        lines += [_row(rule) for rule in members]
    lines += ["", "## Root causes", "", "| id | root cause | rules |", "|---|---|---|"]
    return "\n".join([*lines, *_root_causes(rules)]) + "\n"


def _root_causes(rules: Sequence[LoadedRule]) -> Iterator[str]:
    """Each root cause of the catalogue with the rules that decide it, or why none does."""
    for cause, title in ROOT_CAUSES.items():
        deciding = ", ".join(rule.rule.id for rule in rules if rule.rule.root_cause == cause)
        yield f"| {cause} | {escaped(title)} | {deciding or escaped(NO_RULE.get(cause, 'none yet'))} |"


def family_title(folder: str) -> str:
    """'dd4_communication' -> 'DD4 Communication'."""
    prefix, _, rest = folder.partition("_")
    title = FAMILY_TITLES.get(prefix)
    return f"{prefix.upper()} {title}" if title else rest.replace("_", " ").capitalize() or folder


def _row(rule: LoadedRule) -> str:
    identity = f"**{rule.rule.id}**<br>{rule.rule.root_cause}"
    cells = (rule.rule.symptom, rule.title, rule.rule.evidence, rule.sections["Mitigation"], verify_text(rule))
    return f"| {identity} | {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return escaped(re.sub(r"\s+", " ", text).strip().removesuffix("."))


def rule_page(rule: LoadedRule) -> str:
    """Everything about one rule as Markdown: runbook, needs, limits."""
    known = rule.rule
    lines = [f"# {known.id} {rule.title}", "", f"Root cause {known.root_cause} · {family_title(rule.family)}", ""]
    lines += [f"Symptom: {known.symptom}", "", f"Evidence: {known.evidence}"]
    for heading, text in rule.sections.items():
        lines += ["", f"## {heading}", "", text]
    lines += ["", "## Verify", "", verify_text(rule), "", "## Evidence it needs", ""]
    lines += _needs(rule)
    lines += ["", "## Limits", "", *_limits(rule)]
    if known.explained_by:
        lines += ["", f"Counts as a consequence when one of these explains it: {', '.join(known.explained_by)}"]
    if known.references:
        lines += ["", "## References", "", *(f"- {reference}" for reference in known.references)]
    return "\n".join([*lines, "", f"File: {rule.path}"]) + "\n"


def _needs(rule: LoadedRule) -> Iterator[str]:
    yield f"- needs: {', '.join(family_words(family) for family in rule.rule.needs)}"
    if rule.rule.optional:
        yield f"- uses, when there: {', '.join(family_words(family) for family in rule.rule.optional)}"
    yield f"- how to record it: {rule.rule.capture}"


def _limits(rule: LoadedRule) -> Iterator[str]:
    docs = limit_docs(rule)
    if not docs:
        yield "None."
        return
    settings = [f"`{doc.name} = {doc.value!r}`" for doc in docs]
    width = max(map(len, settings))
    yield from (f"- {now:{width}}  {doc.meaning}".rstrip() for now, doc in zip(settings, docs, strict=True))
    yield ""
    yield "Change them in `ddiag.toml`:"
    yield ""
    yield from ("```toml", "[limits]", f"{rule.rule.id}.{docs[0].name} = {_toml(docs[0].value)}", "```")


def _toml(value: object) -> str:
    """A limit's value as TOML writes it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
