"""Write ``rules/README.md``, the root-cause table, from the rule files; ``--check`` only says whether it is current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ddiag._paths import rules_folder
from ddiag.reporters.rule_table import rule_table
from ddiag.rulekit.loader import load_rules


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gen_rule_docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the file is out of date")
    parser.add_argument("--output", type=Path, default=rules_folder() / "README.md")
    options = parser.parse_args(arguments)
    wanted = rule_table(load_rules(rules_folder()))
    current = options.output.read_text(encoding="utf-8") if options.output.is_file() else ""
    if wanted == current:
        return 0
    if options.check:
        print(f"{options.output} is out of date: run python -m tools.gen_rule_docs", file=sys.stderr)
        return 1
    options.output.write_text(wanted, encoding="utf-8")
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
