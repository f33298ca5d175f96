"""A person answers a held recipe in the browser: the real server's UI, the real form, Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from prefect_servers import WAIT_SECONDS, running_server, start_flow_run, state_of, wait_for

from infra import services
from infra.settings import Settings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Server and deployments, as `rstar2 up` leaves them."""
    with running_server(tmp_path_factory.mktemp("state")) as settings:
        serving = services.ensure_deployments(settings, settings.api_url)
        services.wait_for_deployment(serving, "rstar2/full-recipe")
        yield settings


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
    """A `smoke` recipe whose first stage can only end in a hold."""
    changes = [f"storage={tmp_path}", "gates.rl-1.threshold=0.0", "gates.rl-1.at_max_steps=hold"]
    parameters = {"profile": "smoke", "run": "held", "set": changes}
    flow_run = start_flow_run(settings, "rstar2/full-recipe", parameters)
    wait_for(lambda: state_of(settings, flow_run) == "Suspended")
    page = f"{services.ui_url(settings.api_url)}/runs/flow-run/{flow_run}"
    said = answer_in_browser(page, option=1)
    assert "rl-1 of the run held waits for a person" in said
    assert "the stage reached its maximum of 3 steps" in said
    assert f"rstar2 gate approve held --storage {tmp_path}" in said
    wait_for(lambda: state_of(settings, flow_run) == "Completed")
