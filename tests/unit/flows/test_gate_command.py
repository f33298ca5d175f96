"""`rstar2 gate` and `rstar2 owner` over a ledger, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from rollout_builders import make_step

from flows.commands import main
from infra.object_store import open_store
from infra.ownership import owned
from rstar2.gate import decide_gate
from rstar2.profiles import load_config
from rstar2.types import ArtifactRef, GateDecision, GateVerdict, StageResult
from tasks.ledger import Ledger, start_run

CHECKPOINT = ArtifactRef(kind="checkpoint", uri="demo/rl-1/c", sha256="ab", num_bytes=3)
GATE = ("gates.rl-1.threshold=0.1", "gates.rl-1.max_half_difference=0.03")


def logged(storage: Path, rates: Sequence[float]) -> Ledger:
    """The run `demo` with these truncation rates logged for RL-1, under smoke's gate."""
    config = load_config("smoke")
    ledger = Ledger(open_store(str(storage)), "demo")
    start_run(ledger, config, {}, command="rstar2 run smoke --run demo")
    series = [make_step(n + 1, truncation_rate=rate) for n, rate in enumerate(rates)]
    for n, metrics in enumerate(series, start=1):
        gate = decide_gate(config.gates["rl-1"], series[:n], stage="rl-1")
        values = {"metrics": asdict(metrics), "gate": asdict(gate)}
        ledger.commit("step", stage="rl-1", step=n, values=values)
    return ledger


def end(ledger: Ledger, verdict: GateVerdict, *, step: int) -> None:
    gate = DECISION if verdict is GateVerdict.HOLD else decided(verdict)
    result = StageResult(
        stage="rl-1", checkpoint=CHECKPOINT, problem_set=None, last_step=step, gate=gate
    )
    ledger.commit("stage", stage="rl-1", values=asdict(result))


def decided(verdict: GateVerdict) -> GateDecision:
    return GateDecision(verdict=verdict, reason="because.", evidence={"steps": 3})


DECISION = decided(GateVerdict.HOLD)


def test_show_prints_sentence_numbers_and_course(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = logged(tmp_path, [0.4, 0.2, 0.1])
    end(ledger, GateVerdict.PROMOTE, step=3)
    assert main(["gate", "show", "demo", "--storage", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "rl-1: promote at step 3: because." in shown
    assert "truncated  0.40 █▃▁ 0.10" in shown
    assert "  steps = 3" in shown
    assert "rl-2: no decision yet (0 steps)" in shown


def test_replay_says_what_another_rule_would_have_decided_and_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = logged(tmp_path, [0.4, 0.09, 0.09, 0.05, 0.05])
    end(ledger, GateVerdict.PROMOTE, step=5)
    settings = [f"--set={line}" for line in (*GATE, "gates.rl-1.max_steps=9")]
    assert main(["gate", "replay", "demo", *settings, "--storage", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert (
        "rl-1: ended with promote at step 5; under these rules it would end with promote at step 3"
    ) in shown
    assert "rl-2: no step was logged" in shown

    lower = [*settings, "--set=gates.rl-1.threshold=0.01"]
    assert main(["gate", "replay", "demo", *lower, "--storage", str(tmp_path)]) == 0
    assert "would go on after all 5 logged steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=3", "a replay changes gates only"),
        ("gates.rl-1.treshold=0.1", "did you mean threshold?"),
        ("gates.rl-1.threshold=8", "less than or equal to 1"),
    ],
)
def test_replay_refuses_what_is_no_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, said: str
) -> None:
    logged(tmp_path, [0.4])
    assert main(["gate", "replay", "demo", "--set", override, "--storage", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_never_was_is_named_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged(tmp_path, [0.4])
    for command in ("show", "replay", "approve", "reject"):
        assert main(["gate", command, "dmeo", "--storage", str(tmp_path)]) == 2
        assert "no run 'dmeo'" in capsys.readouterr().err


def test_approve_without_a_hold_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(logged(tmp_path, [0.4]), GateVerdict.PROMOTE, step=1)
    assert main(["gate", "approve", "demo", "--storage", str(tmp_path)]) == 2
    assert "waits for an answer" in capsys.readouterr().err


def test_approve_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(logged(tmp_path, [0.4]), GateVerdict.HOLD, step=1)
    assert main(["gate", "approve", "demo", "--storage", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "rl-1: promote: approved by a person" in shown
    assert "rstar2 run smoke --run demo" in shown


def test_reject_says_that_the_run_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(logged(tmp_path, [0.4]), GateVerdict.HOLD, step=1)
    assert main(["gate", "reject", "demo", "--storage", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "the run is over; how it went: rstar2 gate show demo" in shown
    assert "rstar2 run" not in shown


def test_owner_names_the_process_that_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path))
    assert main(["owner", "demo", "--storage", str(tmp_path)]) == 1
    with owned(store, "demo"):
        assert main(["owner", "demo", "--storage", str(tmp_path)]) == 0
        assert "is being trained by process" in capsys.readouterr().out
    assert main(["owner", "demo", "--storage", str(tmp_path)]) == 1
    assert "no process trains the run demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected --webhook URL, or --email ADDRESS"),
        (["--webhook", "example.org"], "expected an address like https://"),
        (["--email", "me@example.org"], "--email needs --sender ADDRESS"),
        (
            ["--email", "me@a.org", "--sender", "a@b.c", "--sendgrid-key-file", "/no/such"],
            "/no/such: no such file",
        ),
    ],
)
def test_notify_says_what_it_needs(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["notify", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_an_answer_without_a_flow_run_names_the_command_that_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = logged(tmp_path, [0.4])
    end(ledger, GateVerdict.HOLD, step=1)
    assert main(["gate", "approve", "demo", "--storage", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("then: rstar2 run smoke --run demo\n")


def test_a_run_that_was_registered_without_a_command_still_names_one(tmp_path: Path) -> None:
    ledger = Ledger(open_store(str(tmp_path)), "other")
    start_run(ledger, load_config("smoke"), {})
    assert ledger.command() == "rstar2 run smoke --run other"
