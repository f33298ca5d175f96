"""A hold that suspends, its answers, notices to people, and runs whose process is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from prefect_servers import environment, rstar2, running_server, start_flow_run, state_of, wait_for

from infra.object_store import open_store
from infra.prefect_api import get_json, post_json
from infra.settings import Settings
from rstar2.profiles import load_config
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, StageResult
from tasks.ledger import Ledger, start_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with running_server(tmp_path_factory.mktemp("state")) as settings:
        yield settings


SERVED = """
from prefect import flow
from flows.hold import open_ledger_across_holds, past_holds
from infra.object_store import open_store
from tasks.ledger import Ledger
from tasks.promotion import pass_gate
from tasks.promotion_answers import answer, held_stage

@flow(log_prints=True)
def held(storage: str, run: str) -> str:
    with open_ledger_across_holds(storage, run) as ledger:
        def advance():
            result = pass_gate(ledger, stage="rl-1", result=ledger.stage_result("rl-1"))
            other = Ledger(open_store(storage), run)
            if run == "early" and held_stage(other):
                answer(other, "approve")  # a person, between this look and the suspension
            return result
        result = past_holds(ledger, advance, days=1)
    return str(result.gate.verdict)

if __name__ == "__main__":
    held.serve("held", print_starting_message=False)
"""


@pytest.fixture(scope="module")
def serving(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A deployment whose flow is the recipe's way through a hold, without training."""
    script = tmp_path_factory.mktemp("flow") / "held_flow.py"
    script.write_text(SERVED)
    process = subprocess.Popen([sys.executable, str(script)], env=environment(settings))
    url = f"{settings.api_url}/deployments/name/held/held"
    wait_for(lambda: isinstance(get_json(url), dict))
    yield "held/held"
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)


def held_run(storage: Path, run: str) -> Ledger:
    """A run whose RL-1 ended in a hold."""
    ledger = Ledger(open_store(str(storage)), run)
    start_run(ledger, load_config("smoke"), {})
    gate = GateDecision(verdict=GateVerdict.HOLD, reason="idle.", evidence={"steps": 3})
    checkpoint = ArtifactRef(kind="checkpoint", uri="c", sha256="ab", num_bytes=3)
    result = StageResult(
        stage="rl-1", checkpoint=checkpoint, problem_set=None, last_step=3, gate=gate
    )
    ledger.commit("stage", stage="rl-1", values=asdict(result))
    return ledger


def test_a_hold_suspends_and_goes_on_after_an_answer_by_command(
    settings: Settings, serving: str, tmp_path: Path
) -> None:
    held_run(tmp_path, "one")
    flow_run = start_flow_run(settings, serving, {"storage": str(tmp_path), "run": "one"})
    wait_for(lambda: state_of(settings, flow_run) == "Suspended")
    wait_for(lambda: rstar2(settings, "owner", "one", "--storage", str(tmp_path)).returncode == 1)
    said = rstar2(settings, "gate", "approve", "one", "--storage", str(tmp_path))
    assert said.returncode == 0, said.stderr
    assert "rl-1: promote: approved by a person" in said.stdout
    assert "the suspended flow run goes on by itself" in said.stdout
    wait_for(lambda: state_of(settings, flow_run) == "Completed")


def test_an_answer_that_comes_before_the_flow_run_is_suspended_starts_it_again(
    settings: Settings, serving: str, tmp_path: Path
) -> None:
    held_run(tmp_path, "early")
    flow_run = start_flow_run(settings, serving, {"storage": str(tmp_path), "run": "early"})
    wait_for(lambda: state_of(settings, flow_run) == "Completed")


def test_a_hold_is_answered_in_the_form_of_the_ui(
    settings: Settings, serving: str, tmp_path: Path
) -> None:
    ledger = held_run(tmp_path, "two")
    flow_run = start_flow_run(settings, serving, {"storage": str(tmp_path), "run": "two"})
    wait_for(lambda: state_of(settings, flow_run) == "Suspended")
    url = f"{settings.api_url}/flow_runs/{flow_run}/resume"
    wrong = post_json(url, {"run_input": {"verdict": "perhaps"}})
    assert isinstance(wrong, dict)
    assert wrong["status"] == "REJECT"
    post_json(url, {"run_input": {"verdict": "reject"}})
    wait_for(lambda: state_of(settings, flow_run) == "Completed")
    answer = Ledger(ledger.store, "two").find("answer", stage="rl-1")
    assert answer is not None
    assert answer.values["verdict"] == "reject"
    again = rstar2(settings, "gate", "approve", "two", "--storage", str(tmp_path))
    assert again.returncode == 2
    assert "waits for an answer" in again.stderr


BEATING = """
import os, sys, time
from prefect import flow
from prefect.runtime import flow_run

@flow
def beats():
    print(flow_run.id, flush=True)
    time.sleep(600)
beats()
"""

ZOMBIE_RULE = """
from flows.automations import _ensure, ensure_automations, zombie_automation
from prefect.client.orchestration import get_client
ensure_automations()
ensure_automations()
with get_client(sync_client=True) as client:
    _ensure(client, zombie_automation(silent_seconds=100))
    print(len(client.read_automations()))
"""


def test_a_run_without_process_becomes_crashed_and_a_healthy_one_does_not(
    settings: Settings,
) -> None:
    """Heartbeats each 30 s, the shortest that Prefect allows; silent after 100 s."""
    env = environment(settings, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30")
    rule = subprocess.run(
        [sys.executable, "-c", ZOMBIE_RULE], env=env, capture_output=True, text=True, check=True
    )
    assert rule.stdout.strip() == "1"
    command = [sys.executable, "-c", BEATING]
    runs = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    ids = [str(run.stdout.readline().strip()) for run in runs if run.stdout]
    time.sleep(35)  # at least one heartbeat each
    os.kill(runs[0].pid, signal.SIGKILL)
    try:
        deadline = time.monotonic() + 240
        while state_of(settings, ids[0]) != "Crashed":
            assert time.monotonic() < deadline
            assert state_of(settings, ids[1]) == "Running"
            time.sleep(2)
        time.sleep(30)
        assert state_of(settings, ids[1]) == "Running"
    finally:
        for run in runs:
            run.kill()
            run.wait()


@pytest.fixture
def mailbox() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """An address that keeps what is posted to it."""
    got: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", got
    server.shutdown()
    server.server_close()


ANNOUNCING = """
import sys
from prefect import flow
from infra.object_store import open_store
from tasks.ledger import Ledger
from tasks.promotion import pass_gate

@flow(name="rstar2", flow_run_name="one")
def recipe():
    ledger = Ledger(open_store(sys.argv[1]), "one")
    for _ in range(2):
        pass_gate(ledger, stage="rl-1", result=ledger.stage_result("rl-1"))
    raise ValueError("the disk is full")
try:
    recipe()
except ValueError:
    pass
"""


def test_people_are_told_of_gates_and_failures(
    settings: Settings, tmp_path: Path, mailbox: tuple[str, list[dict[str, str]]]
) -> None:
    url, got = mailbox
    held_run(tmp_path, "one")
    for _ in range(2):
        told = rstar2(settings, "notify", "--webhook", url)
        assert told.returncode == 0, told.stderr
    time.sleep(3)  # the server reads new automations within seconds
    command = [sys.executable, "-c", ANNOUNCING, str(tmp_path)]
    subprocess.run(command, env=environment(settings), check=True)
    wait_for(lambda: len(got) >= 2)
    texts = sorted(message["text"] for message in got)
    assert texts[0] == "one rl-1: hold: idle."
    assert texts[1].startswith("one: Failed: ")
    assert "the disk is full" in texts[1]
    assert len(texts) == 2
