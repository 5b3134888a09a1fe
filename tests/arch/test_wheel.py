"""What is in the wheel, and that it works in an empty environment without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tools.synth import SCENARIOS, generate

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("wheel")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and its own requirements, nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    command = [
        *(sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")),
        *("install", "--quiet", "--no-input", "--disable-pip-version-check"),
        *("-c", str(REPOSITORY / "tools" / "constraints.txt"), str(wheel)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def _run(environment: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / "ddiag"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_only_ddiag_lands_in_site_packages(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"ddiag", "ddiag-0.1.0.dist-info"}


def test_rules_templates_types_and_schema_travel_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    def tracked(folder: str) -> set[str]:
        listed = subprocess.run(
            ["git", "ls-files", folder], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.split()
        return {path for path in listed if (REPOSITORY / path).is_file()}

    data = {f"ddiag/_data/{path}" for folder in ("rules", "reports") for path in tracked(folder)}
    assert data
    assert data | tracked("ddiag") <= names
    assert "ddiag/py.typed" in names
    assert "ddiag/reporters/diagnosis.schema.json" in names


def test_nothing_else_travels(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name or "/shared/" in name]


def test_the_licence_travels(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith("dist-info/licenses/LICENSE")]


def test_it_works_without_torch(environment: Path, tmp_path: Path) -> None:
    python = environment / "bin" / "python"
    code = (
        "import importlib.util as u; print(*[n for n in ('torch', 'jupyterlab', 'pandas', 'pytest') if u.find_spec(n)])"
    )
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == []

    helped = _run(environment, tmp_path, "--help")
    assert helped.returncode == 0
    assert "analyze" in helped.stdout

    listed = _run(environment, tmp_path, "rules", "list")
    assert listed.returncode == 0, listed.stderr
    assert "DD101" in listed.stdout

    generate(SCENARIOS["input_bound_single_process"].job, tmp_path / "traces")
    analyzed = _run(environment, tmp_path, "analyze", "traces", "--json", "diagnosis.json")
    assert analyzed.returncode == 0, analyzed.stderr
    assert "Traceback" not in analyzed.stderr
    assert json.loads((tmp_path / "diagnosis.json").read_text())["findings"]
    assert (tmp_path / "ddiag-report.html").stat().st_size > 10_000
