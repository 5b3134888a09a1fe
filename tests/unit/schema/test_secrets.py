"""Secrets never reach a run folder."""

from __future__ import annotations

import pytest

from ddiag.schema.secrets import redact, redact_argv, redact_environment, secret_name


@pytest.mark.parametrize(
    "name",
    [
        *(
            "WANDB_API_KEY",
            "HF_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "DB_PASSWORD",
            "--api-key",
            "--token",
        ),
        *(
            "NCCL_AUTH",
            "--hf_key",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "MLFLOW_TRACKING_PASSWORD",
            "SSH_KEY",
            "key",
            "pwd",
        ),
        *("COMET_API_KEY", "SLURM_JWT_TOKEN", "SENTRY_DSN", "AZURE_STORAGE_SAS"),
    ],
)
def test_secret_names(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "--monkey", "--keyboard", "OMP_NUM_THREADS", "--keep", "--path", "--num-heads"]
)
def test_harmless_names(name: str) -> None:
    assert not secret_name(name)


def test_a_command_line_keeps_everything_but_secrets() -> None:
    argv = [
        "python",
        "train.py",
        "--api-key",
        "abc",
        "--lr=1",
        "--token=xyz",
        "WANDB_API_KEY=1",
        "--data",
        "s3://u:p@h/x",
    ]
    shown = (
        "python",
        "train.py",
        "--api-key",
        "***",
        "--lr=1",
        "--token=***",
        "WANDB_API_KEY=***",
        "--data",
        "s3://***@h/x",
    )
    assert redact_argv(argv) == shown


def test_an_option_without_a_value_hides_nothing() -> None:
    assert redact_argv(["x", "--token", "--lr", "1"]) == ("x", "--token", "--lr", "1")


def test_a_shell_line_is_looked_into() -> None:
    line = "export HF_TOKEN=hf_x; torchrun  train.py --key k\n--lr 1"
    assert redact_argv(["bash", "-c", line])[2] == "export HF_TOKEN=*** torchrun  train.py --key ***\n--lr 1"


def test_well_known_tokens_are_hidden_wherever_they_stand() -> None:
    for token in ("hf_" + "a" * 20, "ghp_" + "b" * 36, "sk-" + "c" * 40, "AKIA" + "D" * 16):
        assert token not in redact(f"see {token} there")
        assert redact_argv(["python", "x.py", token])[2] == "***"


def test_an_environment_loses_secrets_by_name_and_by_form() -> None:
    given = {"NCCL_DEBUG": "INFO", "TORCH_TOKEN": "x", "NCCL_X": "http://user:pass@proxy"}
    assert redact_environment(given) == {"NCCL_DEBUG": "INFO", "NCCL_X": "http://***@proxy"}
