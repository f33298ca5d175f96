"""Where a checkout keeps its state, and which server it talks to."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.settings import DEFAULT_API_URL, load_settings, prefect_variables

PYPROJECT = '[project]\nname = "rstar2"\n[tool.prefect.api]\nurl = "http://127.0.0.1:4999/api"\n'


@pytest.fixture(autouse=True)
def no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RSTAR2_STATE_FOLDER", "PREFECT_API_URL", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


def test_a_checkout_is_found_from_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    settings = load_settings()
    assert settings.checkout == tmp_path
    assert settings.state_folder == tmp_path / ".rstar2"
    assert settings.api_url == "http://127.0.0.1:4999/api"
    assert not settings.is_api_url_chosen


def test_outside_a_checkout_the_working_directory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings().state_folder == tmp_path / ".rstar2"
    assert load_settings().api_url == DEFAULT_API_URL


def test_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTAR2_STATE_FOLDER", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PREFECT_API_URL", "http://10.0.0.7:4200/api")
    settings = load_settings()
    assert settings.state_folder == tmp_path / "elsewhere"
    assert settings.api_url == "http://10.0.0.7:4200/api"
    assert settings.is_api_url_chosen


def test_prefect_never_starts_a_temporary_server_nor_phones_home() -> None:
    variables = prefect_variables(load_settings(), "http://127.0.0.1:4269/api")
    assert variables["PREFECT_SERVER_EPHEMERAL_ENABLED"] == "false"
    assert variables["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert variables["DO_NOT_TRACK"] == "1"
