"""What is no address is named as such wherever one is read, and ends a command with exit code 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra import services
from infra.object_store import StoreError, open_store
from infra.prefect_api import get_json
from infra.settings import Settings

NO_ADDRESSES = [
    "4269",
    "http://[::1/api",
    "http://127.0.0.1:many/api",
    "http://:4269",
    "http://",
    "",
]


def settings_of(folder: Path, api_url: str) -> Settings:
    return Settings(
        checkout=folder,
        state_folder=folder,
        api_url=api_url,
        is_api_url_chosen=True,
        s3_endpoint=None,
    )


@pytest.mark.parametrize("api_url", NO_ADDRESSES)
@pytest.mark.parametrize(
    "read", [services.ensure_server, services.server_health, services.current_api_url]
)
def test_a_prefect_server(tmp_path: Path, api_url: str, read: Callable[[Settings], object]) -> None:
    with pytest.raises(
        services.AddressError, match="expected an address like http://127"
    ) as caught:
        read(settings_of(tmp_path, api_url))
    assert repr(api_url) in str(caught.value)


@pytest.mark.parametrize("api_url", NO_ADDRESSES)
def test_a_port_to_be_looked_at(api_url: str) -> None:
    with pytest.raises(services.AddressError):
        services.is_port_free(api_url)


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_a_request_to_nowhere_has_no_answer(url: str) -> None:
    assert get_json(url) is None


@pytest.mark.parametrize("uri", ["s3://", "s3://[::1/x", "s3://key:secret@[::1/x", "gs://x"])
def test_a_store(tmp_path: Path, uri: str) -> None:
    with pytest.raises(ValueError, match=r"not an S3 address|unknown kind of storage") as caught:
        open_store(uri, cache=tmp_path)
    assert isinstance(caught.value, StoreError)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://[::1/api", "4269", "http://"])
def test_an_s3_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ValueError, match="expected an address like") as caught:
        open_store("s3://bucket/prefix", cache=tmp_path)
    assert isinstance(caught.value, StoreError)
