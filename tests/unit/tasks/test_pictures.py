"""Pictures of a run may be lost, its work may not."""

from __future__ import annotations

import httpx
import pytest

from tasks.pictures import shown


def test_a_picture_that_finds_no_server_is_lost_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with shown("the progress bar"):
        raise httpx.ConnectError("connection refused")
    assert caplog.messages == [
        "the progress bar is not shown, the run goes on: no Prefect server (connection refused)"
    ]


def test_another_error_inside_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="no such key"), shown("a table"):
        raise ValueError("no such key")
