"""Record a real two-rank training with a planted bottleneck, then diagnose it: what ``make demo`` runs."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

RANKS = 2
NAME = "demo"
TRAINING_LIMIT_SECONDS = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--workers", type=int, default=0, help="loader workers per rank; 2 is the cure (default: 0)")
    options = parser.parse_args()

    _clear(options.out)
    print(f"$ ddiag run -- torchrun --nproc-per-node {RANKS} train.py --workers {options.workers}", flush=True)
    started = time.monotonic()
    run = _record(options.out, options.workers)
    if run is None:
        return 1
    print(f"Trained and recorded in {time.monotonic() - started:.0f} s. Now the diagnosis:\n", flush=True)
    report = run / "report.html"
    code = subprocess.call([sys.executable, "-m", "ddiag", "analyze", str(run), "--html", str(report)])
    if code == 0 and not options.workers:
        print("\nApply the fix and look again:  .venv/bin/python -m tools.demo --workers 2")
    if code == 0:
        _open(report)
    return code


def _clear(folder: Path) -> None:
    """Start without what an earlier demo left there, touching nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for manifest in folder.glob(f"{NAME}-*/run.json"):
        shutil.rmtree(manifest.parent)


def _record(out: Path, workers: int) -> Path | None:
    """Run the training under ``ddiag run``; its run folder, or None when it failed (its output is shown then)."""
    command = [
        *(sys.executable, "-m", "ddiag", "run", "--no-report", "--out", str(out), "--name", NAME, "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)),
        *("-m", "tools.demo.train", "--workers", str(workers)),
    ]
    # One computing thread per rank: two ranks then fit on two cores.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DDIAG_BUILD": "0"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TRAINING_LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"The training did not end within {TRAINING_LIMIT_SECONDS} s.", file=sys.stderr)
        return None
    found = [manifest.parent for manifest in out.glob(f"{NAME}-*/run.json")]
    if done.returncode or not found:
        print(done.stdout + done.stderr, file=sys.stderr)
        print("The training failed; its output is above.", file=sys.stderr)
        return None
    return found[0]


def _open(report: Path) -> None:
    """Show the report where there is somebody to see it."""
    opener = shutil.which("open") if sys.platform == "darwin" else shutil.which("xdg-open")
    has_display = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if opener and has_display and "CI" not in os.environ:
        subprocess.Popen([opener, str(report)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
