"""Rewriting against a real server on this machine: what is asked, tried again, kept, never repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from writing_server import Reply, writing_server

from infra import chat_endpoint
from infra.chat_endpoint import Endpoint, EndpointError
from infra.rewriting import JournalError, Rewriting, rewrite_dialogues
from rstar2.config import ChatConfig
from rstar2.conversations import Message
from rstar2.dialogues import Dialogue, read_dialogues, write_dialogues


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_endpoint, "FIRST_PAUSE_SECONDS", 0.01)


def instruction(number: int) -> Dialogue:
    return talk(f"tulu-3/{number}", "tulu-3", f"Question {number}?", f"Answer {number}.")


def talk(dialogue_id: str, source: str, question: str, answer: str, *more: Message) -> Dialogue:
    said = f"<reason></reason><answer>{answer}</answer>"
    first = (Message(role="user", content=question), Message(role="assistant", content=said))
    return Dialogue(dialogue_id=dialogue_id, source=source, messages=(*first, *more))


def better(text: str, number: int) -> Reply:
    return 200, f"better: {text}"


def rewrite(
    dialogues: list[Dialogue], url: str, folder: Path, *, in_flight: int = 4, attempts: int = 3
) -> Rewriting:
    endpoint = Endpoint(url=url, model="writer", api_key="secret", max_attempts=attempts)
    journal = folder / "answers"
    return rewrite_dialogues(
        dialogues, endpoint, journal, in_flight=in_flight, on_answer=lambda *_: None
    )


def test_responses_of_instructions_are_written_anew_and_the_original_kept(tmp_path):
    with writing_server(better) as server:
        result = rewrite([instruction(1)], server.url, tmp_path)
    (done,) = result.dialogues
    assert done.messages[0].content == "Question 1?"
    assert done.messages[1].content == "<reason></reason><answer>better: Question 1?</answer>"
    assert done.original == instruction(1).messages
    assert server.keys == {"Bearer secret"}
    (body,) = server.bodies
    assert body["model"] == "writer"
    assert [m["role"] for m in body["messages"]] == ["system", "user"]


def test_prompts_of_chat_are_written_anew_and_its_responses_stay(tmp_path):
    second = (
        Message(role="user", content="And then?"),
        Message(role="assistant", content="<reason></reason><answer>Then rain.</answer>"),
    )
    chat = talk("nemotron-chat/1", "nemotron-chat", "Weather?", "Sun.", *second)
    with writing_server(better) as server:
        (done,) = rewrite([chat], server.url, tmp_path).dialogues
    assert [m.content for m in done.messages if m.role == "user"] == [
        "better: Weather?",
        "better: And then?",
    ]
    assert done.messages[1] == chat.messages[1]


def test_other_sources_are_not_asked_about(tmp_path):
    other = talk("glaive/1", "glaive", "Hi", "Hello")
    with writing_server(better) as server:
        result = rewrite([other], server.url, tmp_path)
    assert result.dialogues == (other,)
    assert not server.seen


def test_no_more_questions_are_under_way_than_allowed(tmp_path):
    with writing_server(better, seconds=0.05) as server:
        result = rewrite([instruction(n) for n in range(20)], server.url, tmp_path, in_flight=3)
    assert result.num_rewritten == 20
    assert 2 <= server.most_at_once <= 3


def test_what_passes_is_tried_again(tmp_path):
    statuses = {0: 500, 1: 429}
    with writing_server(lambda text, number: (statuses.get(number, 200), "ok")) as server:
        result = rewrite([instruction(1), instruction(2)], server.url, tmp_path)
    assert result.num_rewritten == 2
    assert set(server.seen.values()) == {3}


def test_what_was_never_answered_is_counted_and_asked_again_at_the_next_start(tmp_path):
    dialogues = [instruction(1), instruction(2)]
    with writing_server(lambda text, _: (503 if "1" in text else 200, "ok")) as server:
        first = rewrite(dialogues, server.url, tmp_path, attempts=2)
    assert (first.num_rewritten, first.num_unanswered) == (1, 1)
    assert first.kept_as_they_were == {"unanswered": 1}
    assert first.dialogues[0] == instruction(1)
    with writing_server(better) as server:
        second = rewrite(dialogues, server.url, tmp_path)
    assert (second.num_asked, second.num_rewritten) == (1, 2)
    assert set(server.seen) == {"Question 1?"}


def test_an_endpoint_that_is_away_leaves_everything_unanswered(tmp_path):
    with writing_server(better) as server:
        pass
    result = rewrite([instruction(1)], server.url, tmp_path, attempts=2)
    assert (result.num_rewritten, result.num_unanswered) == (0, 1)


def test_what_the_endpoint_declines_is_counted_and_not_asked_again(tmp_path):
    with writing_server(lambda *_: (400, "filtered")) as server:
        for _ in range(2):
            result = rewrite([instruction(1)], server.url, tmp_path)
    assert result.kept_as_they_were == {"declined: HTTP 400": 1}
    assert result.num_unanswered == 0
    assert server.seen == {"Question 1?": 1}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (" ", "empty answer"),
        ("<think>Hm.</think>Yes", "teaches reasoning: thinking tags"),
        ("Yes</answer>", "spells a tag of the template"),
    ],
)
def test_an_answer_that_does_not_fit_leaves_the_dialogue_as_it_was(tmp_path, answer, reason):
    with writing_server(lambda *_: (200, answer)) as server:
        result = rewrite([instruction(1)], server.url, tmp_path)
    assert result.dialogues == (instruction(1),)
    assert result.kept_as_they_were == {reason: 1}


@pytest.mark.parametrize("status", [401, 404])
def test_a_wrong_key_or_model_ends_it_with_what_to_do(tmp_path, status):
    with writing_server(lambda *_: (status, "no")) as server:
        with pytest.raises(EndpointError, match="OPENAI_API_KEY") as raised:
            rewrite([instruction(n) for n in range(9)], server.url, tmp_path)
    assert "secret" not in str(raised.value)


def test_an_address_that_is_no_such_api_is_named(tmp_path):
    with writing_server(better) as server:
        with pytest.raises(EndpointError, match="up to /v1"):
            rewrite([instruction(1)], server.url.removesuffix("/v1"), tmp_path)


def test_the_same_question_is_asked_once(tmp_path):
    dialogues = [instruction(1), talk("tulu-3/9", "tulu-3", "Question 1?", "Other.")]
    with writing_server(better) as server:
        result = rewrite(dialogues, server.url, tmp_path)
    assert result.num_rewritten == 2
    assert server.seen == {"Question 1?": 1}


def test_a_half_written_last_line_is_cut_off_and_asked_again(tmp_path):
    dialogues = [instruction(1), instruction(2)]
    with writing_server(better) as server:
        rewrite(dialogues, server.url, tmp_path, in_flight=1)
        journal = tmp_path / "answers"
        journal.write_bytes(journal.read_bytes()[:-5])
        result = rewrite(dialogues, server.url, tmp_path)
        assert (result.num_asked, result.num_rewritten) == (1, 2)
        assert rewrite(dialogues, server.url, tmp_path).num_asked == 0


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    (tmp_path / "answers").write_text("my notes\n")
    with pytest.raises(JournalError, match="no row of a journal"):
        rewrite([instruction(1)], "http://127.0.0.1:1/v1", tmp_path)


def test_the_key_is_not_shown():
    assert "secret" not in repr(Endpoint(url="u", model="m", api_key="secret"))


@pytest.mark.slow
def test_killed_and_started_again_nothing_answered_is_asked_twice(tmp_path):
    num, in_flight = 60, 4
    write_dialogues(tmp_path / "in.jsonl", [instruction(n) for n in range(num)])
    with writing_server(better, seconds=0.1) as server:
        command = [
            *(sys.executable, "-m", "flows.commands", "sft", "rewrite"),
            *(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")),
            *("--endpoint", server.url, "--model", "writer", "--in-flight", str(in_flight)),
        ]
        for enough in (15, 35):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while server.answered.total() < enough:
                time.sleep(0.01)
                assert process.poll() is None
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        repeated = sum(count - 1 for count in server.seen.values())
    assert len(server.seen) == num
    # Only what was under way at one of the two kills, whose answer nobody read, was asked anew.
    assert repeated <= 2 * in_flight
    done = read_dialogues(tmp_path / "out.jsonl", ChatConfig())
    assert all(d.messages[1].content.startswith("<reason></reason><answer>better") for d in done)
    assert [d.original for d in done] == [instruction(n).messages for n in range(num)]
