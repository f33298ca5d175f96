"""A person answers a held recipe in the browser: the real server's UI, the real form, Chromium."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from infra import services
from infra.prefect_api import get_json, post_json
from infra.settings import Settings

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 240
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Server and deployments, as `rstar2 up` leaves them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = Settings(
        checkout=ROOT,
        state_folder=tmp_path_factory.mktemp("state"),
        api_url=f"http://127.0.0.1:{port}/api",
        is_api_url_chosen=False,
        s3_endpoint=None,
    )
    serving = services.ensure_deployments(settings, services.ensure_server(settings))
    services.wait_for_deployment(serving, "rstar2/full-recipe")
    yield settings
    services.stop_deployments(settings)
    services.stop_server(settings)


def start_held_recipe(settings: Settings, storage: Path) -> str:
    """A `smoke` recipe whose first stage can only end in a hold; returns the flow run's id."""
    found = get_json(f"{settings.api_url}/deployments/name/rstar2/full-recipe")
    assert isinstance(found, dict)
    changes = [f"storage={storage}", "gates.rl-1.threshold=0.0", "gates.rl-1.at_max_steps=hold"]
    parameters = {"profile": "smoke", "run": "held", "set": changes}
    created = post_json(
        f"{settings.api_url}/deployments/{found['id']}/create_flow_run",
        {"parameters": parameters, "state": {"type": "SCHEDULED"}},
    )
    assert isinstance(created, dict)
    return str(created["id"])


def wait_for_state(settings: Settings, flow_run: str, name: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    seen = ""
    while seen != name:
        assert time.monotonic() < deadline, f"{seen}, not {name}, after {WAIT_SECONDS} s"
        found = get_json(f"{settings.api_url}/flow_runs/{flow_run}")
        seen = str(found["state"]["name"]) if isinstance(found, dict) else ""
        time.sleep(0.5)


def answer_in_browser(address: str, *, option: int) -> str:
    """Opens the form, picks the n-th answer and sends it; returns what the form said."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1500, "height": 1100})
        page.set_default_timeout(WAIT_SECONDS * 1000)
        page.goto(address, wait_until="domcontentloaded")
        page.get_by_role("button", name="Resume").first.click()
        form = page.locator(".p-modal__card")
        choice = form.locator(".p-select-button__control")
        choice.focus()
        for _ in range(option):
            page.keyboard.press("ArrowDown")
            page.wait_for_timeout(500)  # the list opens with a transition
        page.keyboard.press("Enter")
        said = form.inner_text()
        form.get_by_role("button", name="Submit").click()
        form.wait_for(state="hidden")
        browser.close()
    return said


def test_a_held_recipe_is_approved_in_the_browser_and_runs_to_its_end(
    settings: Settings, tmp_path: Path
) -> None:
    flow_run = start_held_recipe(settings, tmp_path)
    wait_for_state(settings, flow_run, "Suspended")
    page = f"{services.ui_url(settings.api_url)}/runs/flow-run/{flow_run}"
    said = answer_in_browser(page, option=1)
    assert "rl-1 of the run held waits for a person" in said
    assert "the stage reached its maximum of 3 steps" in said
    assert f"rstar2 gate approve held --storage {tmp_path}" in said
    wait_for_state(settings, flow_run, "Completed")
