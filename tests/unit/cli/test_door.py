from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddiag.cli.group import COMMANDS, group
from ddiag.errors import InputError, RuleDefect
from tests.unit.cli.conftest import Run

REPOSITORY = Path(__file__).resolve().parents[3]
DDIAG = [sys.executable, "-m", "ddiag"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("ddiag.ingest.load", load)


def test_help_and_version_are_quick_and_load_nothing_heavy() -> None:
    code = (
        "import sys; from ddiag.cli import main; code = main(['--help']); "
        "print(code, [m for m in ('polars', 'numpy', 'rich', 'plotly', 'msgspec', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    for command in COMMANDS:
        assert f"\n  {command}" in done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, ddiag; print([m for m in ('polars', 'numpy', 'click') if m in sys.modules], dir(ddiag))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    names = ["LightningCallback", "TrainerCallback", "__version__", "diagnose", "load_run", "record"]
    assert done.stdout.strip() == f"[] {names}"


def test_the_version_is_one_line(run: Run) -> None:
    result = run("--version")
    assert result.code == 0
    assert result.out.startswith("ddiag ")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_line_of_help_says_what_the_command_says(command: str) -> None:
    loaded = group.get_command(None, command)  # type: ignore[arg-type]
    assert loaded is not None
    first = (loaded.help or "").split("\n\n")[0].replace("\n", " ")
    assert first == COMMANDS[command][1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("analyse",), "Did you mean 'analyze'?"),
        (("zzz",), "No such command 'zzz'."),
        (("analyze", "x", "--jsn", "f"), "No such option"),
        (("analyze", "x", "--jobs", "0"), "0 is not in the range"),
        (("analyze", "x", "--fail-on", "fatal"), "'fatal' is not one of"),
        (("analyze", "x", "--html", "a", "--no-html"), "exclude each other"),
        (("export", "x"), "--perfetto FILE, --parquet DIR"),
        (("query", "x"), "a run and a statement are needed"),
    ],
)
def test_wrong_usage_is_code_2_and_says_what_is_right(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert words in " ".join(result.err.split())
    assert "Traceback" not in result.err


def test_a_path_given_as_command_is_told_how_to_analyze_it(run: Run) -> None:
    Path("trace.json").write_text("{}")
    assert "ddiag analyze trace.json" in run("trace.json").err


def test_what_the_user_can_mend_is_code_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, InputError("a.json: is empty"))
    result = run("analyze", "a.json")
    assert (result.code, result.err) == (2, "Error: a.json: is empty\n")


@pytest.mark.parametrize("error", [KeyError("step"), RuleDefect("rule DD101 failed"), MemoryError(), AssertionError()])
def test_a_defect_is_code_3_with_something_to_attach(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(monkeypatch, error)
    result = run("analyze", "secret name.json")
    assert (result.code, result.out) == (3, "")
    assert f"Internal error: {type(error).__name__}" in result.err
    assert "Traceback" not in result.err
    (bundle,) = tmp_path.glob("ddiag-crash-*.txt")
    assert str(bundle) in result.err
    text = bundle.read_text(encoding="utf-8")
    assert "Traceback" in text
    assert "command: ddiag analyze 'secret name.json'" in text
    assert "polars " in text


def test_a_panic_of_polars_is_a_defect_too(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import polars as pl

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(monkeypatch, pl.exceptions.PanicException("index out of bounds"))
    assert run("analyze", "a.json").code == 3


def test_verbose_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(monkeypatch, KeyError("step"))
    assert "Traceback" in run("analyze", "a.json", "--verbose").err
    assert not list(tmp_path.glob("ddiag-crash-*"))


def test_without_room_for_a_bundle_the_advice_is_verbose(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ddiag.cli.crash._write_bundle", full)
    failing(monkeypatch, KeyError("step"))
    result = run("analyze", "a.json")
    assert (result.code, "with --verbose" in result.err) == (3, True)


def test_an_interrupt_is_quiet(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    result = run("analyze", "a.json")
    assert (result.code, result.out, result.err.strip()) == (130, "", "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = subprocess.Popen(
        [*DDIAG, "rules", "table"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=REPOSITORY
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as stderr:
        said = stderr.read()
    assert (process.wait(60), said) == (141, b"")


def test_ctrl_c_while_reading_is_quiet(slow_input: Path, tmp_path: Path) -> None:
    """A real interrupt of the whole process group, worker processes included, as a terminal sends it."""
    many = tmp_path / "many"
    for copy in range(20):
        shutil.copytree(slow_input, many / str(copy))
    process = subprocess.Popen(
        [*DDIAG, "query", str(many), "SELECT 1", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    _wait_for_children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said.strip()) == (130, b"", b"")


def _wait_for_children(pid: int) -> None:
    import psutil

    for _ in range(600):
        if psutil.Process(pid).children(recursive=True):
            return
        time.sleep(0.05)
    raise AssertionError("no worker process ever started")


def test_an_encoding_without_blocks_gets_letters(sound: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*DDIAG, "analyze", str(sound), "--no-html"],
        capture_output=True,
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"####" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("redirect", [">&-", ">/dev/full"])
@pytest.mark.parametrize("command", ["rules list", "rules table", "--help"])
def test_stdout_that_takes_nothing_is_one_line_and_no_defect(redirect: str, command: str) -> None:
    if (redirect, command) == (">&-", "--help"):
        pytest.skip("click drops its help in silence when stdout is closed")
    shell = f"{shlex.join(DDIAG)} {command} {redirect}"
    done = subprocess.run(
        ["sh", "-c", shell], stderr=subprocess.PIPE, env=ENVIRONMENT, text=True, timeout=60, check=False
    )
    assert "defect" not in done.stderr
    assert "Traceback" not in done.stderr
    if redirect != ">&-" or command == "rules table":
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
