"""A job behaves under ``ddiag run`` exactly as without it: outputs, exit code, signals, terminal, environment."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ddiag.schema.samples import read_samples
from tests.integration.running import (
    PYTHON,
    alive,
    children,
    environment,
    eventually,
    only_run,
    outcome,
    recorded,
    run,
    same_environment,
    script,
    start,
)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="recording needs Linux")

JOBS = {
    "success": "print('out'); import sys; print('err', file=sys.stderr)",
    "crash": "print('out'); raise RuntimeError('no')",
    "exit 3": "import sys; print('out'); sys.exit(3)",
    "exit with words": "import sys; sys.exit('words')",
    "abort": "import os, resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0)); print('out', flush=True); os.abort()",
    "kills itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "binary output": "import sys; sys.stdout.buffer.write(bytes(range(256)) * 500)",
    "stdin": "import sys; data = sys.stdin.buffer.read(); print(len(data), hash(data) != 0, data[-3:])",
    "no newline at the end": "import sys; sys.stdout.write('a'); sys.stderr.write('b')",
    "closed output": "import os; os.close(1); os.close(2)",
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_outputs_and_exit_code_are_the_jobs_own(job: str, tmp_path: Path) -> None:
    command = [PYTHON, "-c", job]
    given = bytes(range(256)) * 1000
    bare = run(command, given=given, cwd=tmp_path)
    ours = run([*recorded(tmp_path / "runs", "--no-report"), *command], given=given, cwd=tmp_path)
    assert outcome(ours) == outcome(bare)
    folder = only_run(tmp_path / "runs")
    assert not (folder / "errors.jsonl").exists()
    assert {"run.json", "env.json"} <= {path.name for path in folder.iterdir()}


def test_quiet_adds_not_a_byte(tmp_path: Path) -> None:
    command = [PYTHON, "-c", JOBS["crash"]]
    ours = run([*recorded(tmp_path / "runs", "--quiet"), *command])
    bare = run(command)
    assert (ours.returncode, ours.stdout, ours.stderr) == (bare.returncode, bare.stdout, bare.stderr)


def test_a_command_that_is_not_there_is_said_and_gives_127(tmp_path: Path) -> None:
    done = run([*recorded(tmp_path / "runs"), "no-such-command", "x"])
    assert done.returncode == 127
    assert done.stderr == b"ddiag: no-such-command: command not found\n"
    assert not (tmp_path / "runs").exists()


def test_a_file_that_cannot_be_executed_gives_126(tmp_path: Path) -> None:
    path = Path(script(tmp_path, "print()"))
    done = run([*recorded(tmp_path / "runs"), str(path)])
    assert done.returncode == 126
    assert b"Permission denied" in done.stderr


def test_switched_off_the_process_becomes_the_command(tmp_path: Path) -> None:
    job = "import os; e = os.environ; print(os.getpid(), 'DDIAG_RUN' in e, 'bootstrap' in str(e))"
    with start([*recorded(tmp_path / "runs"), PYTHON, "-c", job], env=environment(DDIAG_DISABLE="1")) as process:
        out, err = process.communicate()
    assert out.decode().split() == [str(process.pid), "False", "False"]
    assert err == b""
    assert not (tmp_path / "runs").exists()


def test_a_job_inside_a_recorded_job_is_recorded_once(tmp_path: Path) -> None:
    inner = [*recorded(tmp_path / "inner"), PYTHON, "-c", "import os; print(os.environ['DDIAG_RUN'])"]
    done = run([*recorded(tmp_path / "outer", "--no-report"), *inner])
    assert done.returncode == 0
    assert done.stdout.decode().strip() == str(only_run(tmp_path / "outer"))
    assert b"recorded already" in done.stderr
    assert not (tmp_path / "inner").exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGQUIT", "SIGUSR2"])
def test_a_signal_for_the_supervisor_alone_reaches_the_job_once(name: str, tmp_path: Path) -> None:
    number = signal.Signals[name]
    job = (
        "import os, signal, time\n"
        "got = []\n"
        f"signal.signal({int(number)}, lambda *_: got.append(1))\n"
        "os.write(1, b'ready\\n')\n"
        "until = time.monotonic() + 30\n"
        "while not got and time.monotonic() < until: time.sleep(.01)\n"
        "time.sleep(.3)\n"
        "print(len(got))\n"
    )
    with start([*recorded(tmp_path / "runs", "--no-report"), PYTHON, "-c", job]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.communicate()[0] == b"1\n"
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_for_the_whole_group_reaches_the_job_once(name: str, tmp_path: Path) -> None:
    number = signal.Signals[name]
    job = (
        "import os, signal, time\n"
        "got = []\n"
        f"signal.signal({int(number)}, lambda *_: got.append(1))\n"
        "os.write(1, b'ready\\n')\n"
        "for wanted in (1, 2):\n"
        "    until = time.monotonic() + 30\n"
        "    while len(got) < wanted and time.monotonic() < until: time.sleep(.01)\n"
        "    time.sleep(.3)\n"
        "    os.write(1, b'%d\\n' % len(got))\n"
    )
    with start([*recorded(tmp_path / "runs", "--no-report"), PYTHON, "-c", job]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for count in (b"1\n", b"2\n"):  # the second one shows that the witness was renewed
            os.killpg(process.pid, number)
            assert process.stdout.readline() == count
        process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL", "SIGUSR1"])
def test_a_job_killed_by_a_signal_looks_so_from_outside(name: str, tmp_path: Path) -> None:
    default = "" if name == "SIGKILL" else f"signal.signal(signal.{name}, signal.SIG_DFL); "
    job = f"import os, signal; {default}os.kill(os.getpid(), signal.{name})"
    done = run([*recorded(tmp_path / "runs", "--no-report"), PYTHON, "-c", job])
    assert done.returncode == -signal.Signals[name]
    manifest = json.loads((only_run(tmp_path / "runs") / "run.json").read_text())
    assert manifest["exit_code"] == 128 + signal.Signals[name]


def test_the_job_gets_signals_as_its_parent_left_them(tmp_path: Path) -> None:
    """Held back, ignored and default ones: Python's own changes of them do not show."""
    job = "cat /proc/self/status"
    wrapper = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL); signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
        "os.execvp(sys.argv[1], sys.argv[1:])\n"
    )
    command = ["sh", "-c", job]
    bare = run([PYTHON, "-c", wrapper, *command])
    ours = run([PYTHON, "-c", wrapper, *recorded(tmp_path / "runs", "--no-report"), *command])

    def masks(text: bytes) -> list[bytes]:
        return [line for line in text.splitlines() if line.startswith((b"SigBlk", b"SigIgn", b"SigCgt"))]

    assert masks(ours.stdout) == masks(bare.stdout)
    assert len(masks(bare.stdout)) == 3


def test_the_environment_is_the_users_with_two_more_variables(tmp_path: Path) -> None:
    job = [PYTHON, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]
    given = environment()
    seen = json.loads(run([*recorded(tmp_path / "runs", "--no-report"), *job], env=given).stdout)
    folder = only_run(tmp_path / "runs")
    assert same_environment(seen, given) == {
        "DDIAG_RUN": (None, str(folder)),
        "PYTHONPATH": (given["PYTHONPATH"], f"{folder}/bootstrap:{given['PYTHONPATH']}"),
    }


def test_inherited_files_stay_open_and_no_other_is(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    job = [PYTHON, "-c", "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"]
    given = {"pass_fds": (writer,)}
    bare = run(job, **given)
    ours = run([*recorded(tmp_path / "runs", "--no-report"), *job], **given)
    os.close(writer)
    assert ours.stdout == bare.stdout
    assert str(writer) in bare.stdout.decode()
    os.close(reader)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_job_started_without_some_standard_streams_has_none_of_ours(closed: str, tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys, time\n"
        "files = sorted(int(name) for name in os.listdir('/proc/self/fd'))\n"
        "pathlib.Path(sys.argv[1]).write_text(str(files))\n"
        "time.sleep(.5)\n"
    )
    bare = ["sh", "-c", f'exec "$@" {closed}', "sh", PYTHON, "-c", code, str(tmp_path / "bare")]
    words = recorded(tmp_path / "runs", "--no-report", "--sample-interval", "0.1")
    ours = ["sh", "-c", f'exec "$@" {closed}', "sh", *words, PYTHON, "-c", code, str(tmp_path / "ours")]
    assert (run(bare).returncode, run(ours).returncode) == (0, 0)
    assert (tmp_path / "ours").read_text() == (tmp_path / "bare").read_text()
    _, lines = read_samples(next((only_run(tmp_path / "runs") / "nodes").glob("*.samples")))
    kinds = [line["kind"] for line in lines]
    assert kinds.count("sample") >= 2
    assert kinds[-1] == "end"


def test_an_ignored_sigchld_does_not_cost_the_exit_code(tmp_path: Path) -> None:
    wrapper = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"
    )
    job = "import signal, sys; sys.exit(40 + (signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN))"
    done = run([PYTHON, "-c", wrapper, *recorded(tmp_path / "runs", "--no-report"), PYTHON, "-c", job])
    assert done.returncode == 41


def test_helpers_do_not_hold_the_jobs_pipes_open(tmp_path: Path) -> None:
    """``ddiag run … | cat`` must end when the supervisor is killed and the job ends."""
    job = "import os, time; os.write(1, b'x\\n'); time.sleep(1)"
    with start([*recorded(tmp_path / "runs"), PYTHON, "-c", job]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        process.kill()
        assert process.stdout.read() == b""
        assert process.stderr is not None
        process.stderr.read()


def test_a_killed_supervisor_leaves_the_job_running_and_helpers_end_with_it(tmp_path: Path) -> None:
    job = script(
        tmp_path,
        "import os, pathlib, time\nos.write(1, b'%d\\n' % os.getpid())\n"
        "while not pathlib.Path('go').exists(): time.sleep(.02)\npathlib.Path('done').write_text('yes')\n",
    )
    with start([*recorded(tmp_path / "runs"), PYTHON, job], cwd=tmp_path) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        eventually(lambda: list((tmp_path / "runs").glob("*/env.json")))
        helpers = [one for one in children(process.pid) if one != pid]
        assert helpers
        process.kill()
        process.wait()
        assert alive(pid)
        (tmp_path / "go").touch()
        eventually((tmp_path / "done").exists)
        eventually(lambda: not any(map(alive, [pid, *helpers])))
    manifest = json.loads((only_run(tmp_path / "runs") / "run.json").read_text())
    assert manifest["end_wall_ns"] is None
    samples = next((only_run(tmp_path / "runs") / "nodes").glob("*.samples")).read_text().splitlines()
    assert json.loads(samples[-1])["kind"] == "end"
    assert json.loads(samples[-1])["orphaned"] is True


def test_an_existing_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    script(tmp_path / "site", "import os; os.environ['SEEN'] = __file__", name="sitecustomize.py")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path / 'site'}:{env['PYTHONPATH']}"
    job = [PYTHON, "-c", "import os, sys; print(os.environ['SEEN'], sys.modules['sitecustomize'].__file__)"]
    bare = run(job, env=env)
    ours = run([*recorded(tmp_path / "runs", "--no-report"), *job], env=env)
    assert outcome(ours) == outcome(bare)
    assert b"site/sitecustomize.py" in bare.stdout


def test_a_run_folder_that_cannot_be_made_does_not_stop_the_job(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    done = run([*recorded(tmp_path / "runs"), PYTHON, "-c", "print('trained')"])
    assert done.returncode == 0
    assert done.stdout == b"trained\n"
    assert b"the job runs without recording" in done.stderr


def test_no_rank_is_said_with_a_reason(tmp_path: Path) -> None:
    done = run([*recorded(tmp_path / "runs"), PYTHON, "-I", "-c", "print()"])
    assert b"nothing to diagnose: Python runs with -I" in done.stderr
    done = run([*recorded(tmp_path / "more"), PYTHON, "-c", "print()"])
    assert b"nothing to diagnose: no process of the job called init_process_group" in done.stderr


def test_a_wrong_option_stops_before_the_job(tmp_path: Path) -> None:
    for wrong in (["--profile-steps", "7:5"], ["--profile-steps", "5:"], ["--sample-interval", "0"], ["--nosuch"]):
        done = run([*recorded(tmp_path / "runs", *wrong), PYTHON, "-c", "print('trained')"])
        assert done.returncode == 2
        assert done.stdout == b""
