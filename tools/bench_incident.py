"""How long an incident folder takes: ``python -m tools.bench_incident`` (``make bench`` runs it).

Logs, kernel messages, nvidia-smi outputs and Flight Recorder dumps of 64 nodes (512 ranks), one of them bad, are made,
then diagnosed by ``ddiag analyze`` as a user would. Exit code 1 when it takes longer than the limit or is wrong.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.synth.incident import Night, Truth, write_incident

LIMIT_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    chosen = parser.parse_args(arguments)
    good = True
    for kind in ("xid", "oom"):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "incident"
            truth = write_incident(folder, Night(nodes=chosen.nodes, kind=kind))
            good &= _measure(folder, truth, f"{chosen.nodes} nodes, {kind}")
    return 0 if good else 1


def _measure(folder: Path, truth: Truth, title: str) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "ddiag", "analyze", str(folder), "--no-html", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    findings = json.loads(done.stdout)["findings"] if done.returncode == 0 else []
    right = bool(findings) and (findings[0]["root_cause"], findings[0]["culprits"]["ranks"]) == (
        truth.root_cause,
        [truth.rank],
    )
    verdict = "PASS" if right and seconds < LIMIT_S else "FAIL"
    print(
        f"{title}: {len(files)} files, {size / 1e6:.0f} MB: {seconds:.1f} s (limit {LIMIT_S:.0f}), {peak:.0f} MB; ",
        end="",
    )
    print(f"{'right' if right else 'WRONG'} (rank {truth.rank} on {truth.host}, {truth.root_cause})  {verdict}")
    return verdict == "PASS"


if __name__ == "__main__":
    sys.exit(main())
