"""Records one of ``fixtures/runs``: a small real job under ``ddiag run``, packed, without paths of this machine.

``python -m tools.record_fixture slow_input`` (needs torch). The scenarios are planted here; what their diagnosis must
be is asserted in ``tests/cases/test_recorded_fixtures.py``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
OUT = REPOSITORY / "fixtures" / "runs"
JOB = Path(__file__).with_name("record_fixture_job.py")
SCENARIOS: dict[str, list[str]] = {
    "healthy": ["--hidden=512", "--layers=6"],
    "slow_input": ["--hidden=256", "--layers=6", "--slow-rank=1", "--slow-ms=60"],
    "tiny_buckets": ["--hidden=96", "--layers=40", "--bucket-mb=0.01"],
}
_PATH = re.compile(r"/(?:[\w.+@-]+/)+(?=[\w.+@-])")
_KEPT = ("/proc/", "/sys/", "/dev/")


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = _record(Path(folder), SCENARIOS[name])
        OUT.mkdir(parents=True, exist_ok=True)
        _pack(run, OUT / f"{name}.zip", name)


def _record(out: Path, options: list[str]) -> Path:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(JOB), *options]
    ddiag = [sys.executable, "-m", "ddiag", "run", "--quiet", "--no-report", "--out", str(out), "--name", "job", "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([*ddiag, *torchrun], check=True, env=environment, cwd=out)
    return next(path.parent for path in out.glob("job-*/run.json"))


def _pack(run: Path, archive: Path, name: str) -> None:
    """Every file but the bootstrap; texts without paths. Rings are mostly zeros and pack to a few kilobytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(run.rglob("*")):
            inside = path.relative_to(run)
            if not path.is_file() or inside.parts[0] == "bootstrap":
                continue
            data = path.read_bytes()
            text = path.suffix in (".json", ".jsonl", ".samples")
            entry = zipfile.ZipInfo(f"{name}/{inside}", (2026, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, _anonymous(data.decode()).encode() if text else data)


def _anonymous(text: str) -> str:
    """JSON lines, or one JSON document, with folders of the machine left out."""
    return "\n".join(_line(line) for line in text.split("\n")) if "\n{" in text else _line(text)


def _line(text: str) -> str:
    if not text.strip():
        return text
    return _PATH.sub(lambda found: found[0] if found[0].startswith(_KEPT) else "", json.dumps(json.loads(text)))


if __name__ == "__main__":
    for wanted in sys.argv[1:] or SCENARIOS:
        main(wanted)
