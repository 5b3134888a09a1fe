"""The bootstrap every Python process of a job passes: invisible unless torch is imported in a recorded job."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
BOOTSTRAP = REPOSITORY / "ddiag" / "capture" / "bootstrap"
STARTED = "import sys, torch; print('ddiag.capture.activate' in sys.modules)"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with something called torch, and a run folder."""
    (tmp_path / "run").mkdir()
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text("LOADED = True\n")
    return tmp_path


def _python(
    job: Path, code: str, *options: str, bootstrap: Path = BOOTSTRAP, **variables: str
) -> subprocess.CompletedProcess[str]:
    found = {"PYTHONPATH": f"{bootstrap}:{job / 'lib'}", "DDIAG_RUN": str(job / "run"), "PATH": "/usr/bin:/bin"}
    found = {key: value for key, value in (found | variables).items() if value}
    done = subprocess.run(
        [sys.executable, *options, "-c", code], env=found, capture_output=True, text=True, check=False, cwd=job
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done


def test_it_starts_with_torch(job: Path) -> None:
    assert _python(job, STARTED).stdout == "True\n"


@pytest.mark.parametrize("variables", [{"DDIAG_DISABLE": "1"}, {"DDIAG_RUN": ""}, {"DDIAG_RUN": "/no/such/folder"}])
def test_without_a_run_or_switched_off_it_does_not(job: Path, variables: dict[str, str]) -> None:
    assert _python(job, STARTED, **variables).stdout == "False\n"


def test_a_process_without_torch_loads_nothing_of_ours(job: Path) -> None:
    code = "import sys, json; print([n for n in sys.modules if n.startswith('ddiag')], 'torch' in sys.modules)"
    assert _python(job, code).stdout == "[] False\n"


def test_asking_for_torch_changes_nothing_about_it(job: Path) -> None:
    code = "import importlib.util as u, torch; print(torch.LOADED, u.find_spec('torch').origin, torch.__file__)"
    origin = str(job / "lib" / "torch" / "__init__.py")
    assert _python(job, code).stdout == f"True {origin} {origin}\n"


def test_without_torch_importing_it_fails_as_always(job: Path) -> None:
    shutil.rmtree(job / "lib" / "torch")
    code = "try: import torch\nexcept ModuleNotFoundError as error: print(error)"
    assert _python(job, code, "-S").stdout == "No module named 'torch'\n"


def test_a_sitecustomize_it_hides_still_runs(job: Path) -> None:
    (job / "lib" / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __file__\n")
    code = f"import sys; print(theirs, sys.modules['sitecustomize'].__file__); {STARTED}"
    theirs = str(job / "lib" / "sitecustomize.py")
    assert _python(job, code).stdout == f"{theirs} {theirs}\nTrue\n"


@pytest.mark.parametrize(
    "become",
    [
        "os.execl(*words)",
        "os.execv(words[0], words[1:])",
        "os.execve(words[0], words[1:], dict(os.environ))",
        "os.execve(path=words[0], argv=words[1:], env=dict(os.environ))",
    ],
)
def test_a_launcher_that_puts_its_own_sitecustomize_first_hides_nothing(job: Path, become: str) -> None:
    """As opentelemetry-instrument does, whose sitecustomize runs no other."""
    (job / "theirs").mkdir()
    (job / "theirs" / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __file__\n")
    inner = f"import sys; print(theirs); {STARTED}"
    code = "import os, sys; os.environ['PYTHONPATH'] = 'theirs:' + os.environ['PYTHONPATH']; "
    code += f"words = [sys.executable, sys.executable, '-c', {inner!r}]; {become}"
    assert _python(job, code).stdout == f"{job / 'theirs' / 'sitecustomize.py'}\nTrue\n"


def test_what_a_process_becomes_keeps_an_environment_without_us(job: Path) -> None:
    code = "import os, sys; os.execve(sys.executable, ['python', '-c', 'import os; print(os.environ)'], {b'A': b'1'})"
    assert "'A': '1'" in _python(job, code).stdout
    code = "import os\ntry: os.execv('/no/such/file', ['x'])\nexcept FileNotFoundError as error: print(error.errno)"
    assert _python(job, code).stdout == "2\n"


def test_a_hidden_sitecustomize_that_fails_fails_as_without_us(job: Path) -> None:
    (job / "lib" / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    command, found = [sys.executable, "-c", "print(1)"], {"DDIAG_RUN": str(job / "run")}
    ours, bare = (
        subprocess.run(command, env=found | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
        for path in (f"{BOOTSTRAP}:{job / 'lib'}", str(job / "lib"))
    )
    assert (ours.stdout, ours.returncode) == (bare.stdout, bare.returncode) == ("1\n", 0)
    assert "ValueError: theirs" in bare.stderr
    assert "ValueError: theirs" in ours.stderr


def test_the_jobs_path_does_not_gain_our_neighbours(job: Path) -> None:
    code = f"import sys; before = list(sys.path); {STARTED}; import ddiag; print(sys.path == before, ddiag.__file__)"
    assert _python(job, code).stdout == f"True\nTrue {REPOSITORY / 'ddiag' / '__init__.py'}\n"


def test_a_copy_finds_its_run_and_its_package_without_variables(job: Path) -> None:
    copied = job / "bootstrap"
    shutil.copytree(BOOTSTRAP, copied, ignore=shutil.ignore_patterns("__pycache__"))
    beside = {"run": str(job / "run"), "package": str(REPOSITORY / "ddiag")}
    (copied / "ddiag-bootstrap.json").write_text(json.dumps(beside))
    assert _python(job, STARTED, bootstrap=copied, DDIAG_RUN="").stdout == "True\n"
    assert _python(job, STARTED, bootstrap=copied, DDIAG_RUN="", DDIAG_DISABLE="1").stdout == "False\n"


@pytest.mark.parametrize("broken", ["{", '{"run": 3, "package": []}'])
def test_a_broken_file_beside_it_is_nobodys_problem(job: Path, broken: str) -> None:
    copied = job / "bootstrap"
    shutil.copytree(BOOTSTRAP, copied, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "ddiag-bootstrap.json").write_text(broken)
    assert _python(job, STARTED, bootstrap=copied, DDIAG_RUN="").stdout == "False\n"


def test_isolated_interpreters_are_left_alone(job: Path) -> None:
    code = "import sys; print('sitecustomize' in sys.modules and 'ddiag' in sys.modules['sitecustomize'].__file__)"
    assert _python(job, code, "-I").stdout == "False\n"


def test_it_costs_a_process_next_to_nothing(job: Path) -> None:
    """CPU time of the whole file, run again and again in one interpreter; the bound is generous."""
    code = (
        "import time, runpy, sys\n"
        f"path = {str(BOOTSTRAP / 'sitecustomize.py')!r}\n"
        "code = compile(open(path).read(), path, 'exec')\n"
        "took = []\n"
        "for _ in range(20):\n"
        "    began = time.thread_time(); exec(code, {'__file__': path, '__name__': 'x'})\n"
        "    took.append(time.thread_time() - began)\n"
        "print(min(took) * 1e3)\n"
    )
    milliseconds = float(_python(job, code).stdout)
    print(f"bootstrap: {milliseconds:.2f} ms")
    assert milliseconds < 3


def test_starting_it_twice_starts_it_once(job: Path) -> None:
    nested = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {STARTED!r}]).returncode)"
    began = time.monotonic()
    assert _python(job, nested).stdout.splitlines() == ["True", "0"]
    assert time.monotonic() - began < 60
