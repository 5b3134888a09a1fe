"""``ddiag run``: a job, recorded."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from ddiag.cli.messages import Messages, message_options, messages
from ddiag.cli.options import hang_after, step_range

DEFAULT_OUT = "ddiag-runs"
MIN_INTERVAL_S = 0.1


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: ddiag run -- torchrun --nproc-per-node 8 train.py. Exit code and signals are the command's own.",
)
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option(
    "--out",
    metavar="DIR_OR_URL",
    default=DEFAULT_OUT,
    show_default=True,
    help="Folder in which run folders are made; a run is copied to a URL (s3://, gs://, …) when it has ended.",
)
@click.option(
    "--name", metavar="NAME", help="Name of the run; nodes of one job that share DIR and NAME share a run folder."
)
@click.option(
    "--profile-steps",
    metavar="A:B",
    callback=step_range,
    help="Record these steps with torch.profiler as well, on all ranks, both ends included.",
)
@click.option(
    "--profile-slow",
    is_flag=True,
    help="Record some steps with torch.profiler, at most three times, when steps have become slow and stay so, or when "
    "one step in N takes twice as long as the others.",
)
@click.option("--nvtx", is_flag=True, help="Mark the phases of every step as NVTX ranges, for Nsight Systems.")
@click.option(
    "--device-timing",
    is_flag=True,
    help="Time NCCL collectives on the device, without waiting for it: how long they take, who waits for whom and what "
    "is exposed. May raise the peak of device memory.",
)
@click.option(
    "--sample-interval",
    metavar="SECONDS",
    type=click.FloatRange(min=MIN_INTERVAL_S),
    default=1.0,
    show_default=True,
    help="How often host and devices are looked at; less often where that would take more than 1 % of a core.",
)
@click.option(
    "--hang-after",
    metavar="auto|SECONDS",
    callback=hang_after,
    default="auto",
    show_default=True,
    help="After how long without progress the job is taken to hang and looked into; 0 never. auto: a multiple of "
    "its usual step, 20 s at least.",
)
@click.option(
    "--on-hang",
    type=click.Choice(["keep", "kill"]),
    default="keep",
    show_default=True,
    help="What becomes of a job that hangs, once it has been diagnosed.",
)
@click.option("--no-report", is_flag=True, help="Only record; diagnose later with ddiag analyze.")
@message_options
@click.pass_context
def run(
    ctx: click.Context,
    *,
    command: tuple[str, ...],
    out: str,
    name: str | None,
    profile_steps: tuple[int, int] | None,
    profile_slow: bool,
    nvtx: bool,
    device_timing: bool,
    sample_interval: float,
    hang_after: float | None,
    on_hang: str,
    no_report: bool,
) -> int:
    """Run a training job and record it; diagnose it at the end.

    COMMAND is what starts the job: torchrun, python, deepspeed, accelerate, mpirun, srun or a script. It needs no
    change. Its exit code, signals, stdin, stdout and stderr are its own; what ddiag has to say goes to stderr.
    DDIAG_DISABLE=1 runs the command and nothing else.
    """
    from ddiag.schema.profile import MAX_STEPS
    from ddiag.supervise.job import CannotStartError
    from ddiag.supervise.signals import die_of
    from ddiag.supervise.supervisor import RunOptions, is_url, supervise

    if profile_steps is not None and profile_steps[1] - profile_steps[0] >= MAX_STEPS:
        raise click.BadParameter(
            f"at most {MAX_STEPS} steps can be profiled at once", ctx, param_hint="--profile-steps"
        )
    if is_url(out):
        from ddiag.supervise.upload import check_url

        check_url(out)
    options = RunOptions(
        out=out,
        name=name,
        profile_steps=profile_steps,
        profile_slow=profile_slow,
        report=not no_report,
        nvtx=nvtx,
        device_timing=device_timing,
        sample_interval_s=sample_interval,
        hang_after_s=hang_after,
        on_hang=on_hang,
    )
    try:
        ended = supervise(command, options, environment=os.environ, say=_speaker(messages(ctx)))
    except CannotStartError as error:
        click.echo(f"ddiag: {error}", err=True)
        return error.exit_code
    if ended.signal:
        die_of(ended.signal)
    return ended.shell_code


def _speaker(say: Messages) -> Callable[[str], None]:
    """Every line says who speaks, since it stands among those of the job."""

    def speak(text: str) -> None:
        say.say(f"ddiag: {text}")

    return speak
