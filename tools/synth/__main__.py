"""Write the traces of a named scenario: ``python -m tools.synth --scenario late_input --out DIR``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tools.synth import SCENARIOS, generate


@click.command(help=__doc__)
@click.option("--scenario", type=click.Choice(sorted(SCENARIOS)), help="Which fault to plant; without it, list them.")
@click.option("--ranks", type=click.IntRange(1), help="Number of ranks (the scenario's own by default).")
@click.option("--steps", type=click.IntRange(1), help="Recorded steps per rank.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--flavour", type=click.Choice(["cuda", "cuda_old", "rocm", "cpu"]), help="Whose traces to write.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("synth-out"), show_default=True)
def main(scenario: str | None, ranks: int | None, steps: int | None, seed: int, flavour: str | None, out: Path) -> None:
    if scenario is None:
        for name, entry in SCENARIOS.items():
            truth = ", ".join(entry.rules) or ("undecidable" if entry.undecidable else "healthy")
            click.echo(f"{name:28} {truth:16} {entry.doc}")
        return
    job = SCENARIOS[scenario].job
    job = replace(job, seed=seed, ranks=ranks or job.ranks, steps=steps or job.steps, flavour=flavour or job.flavour)
    for path in generate(job, out):
        click.echo(path)


if __name__ == "__main__":
    main()
