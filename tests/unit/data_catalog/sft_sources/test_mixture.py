"""The SFT mixture: shares by name, read from files as published, every row accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sft_rows import APIGEN_MT, GLAIVE, MAGICODER, MAGICODER_EVOL, NEMOTRON, TOOLACE, TULU

from data_catalog.row_sources import SourceError
from data_catalog.sft_sources.mixture import PUBLISHED, read_mixture
from rstar2.config import SftConfig

ROWS = {
    "toolace": TOOLACE,
    "apigen-mt": APIGEN_MT,
    "glaive": GLAIVE,
    "magicoder": MAGICODER,
    "tulu-3": TULU,
    "nemotron-chat": NEMOTRON,
}


def write_parquet(path: Path, *rows: dict) -> str:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return str(path)


def write_jsonl(path: Path, *rows: dict) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def tulu(number: int, reply: str = "Paris") -> dict:
    messages = [
        {"content": f"Question {number}?", "role": "user"},
        {"content": reply, "role": "assistant"},
    ]
    return TULU | {"id": str(number), "messages": messages}


def test_the_reports_mixture_is_the_default_by_name():
    shares = SftConfig().mixture
    assert set(shares) == set(PUBLISHED)
    calls = [shares[name] for name in ("toolace", "apigen-mt", "glaive", "magicoder")]
    assert (sum(calls), shares["tulu-3"], shares["nemotron-chat"]) == (165_000, 30_000, 27_000)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json", "saved", "repository"])
def test_every_set_is_read_from_a_copy_on_disk(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    paths = {}
    for name, row in ROWS.items():
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            write_parquet(path, row)
        elif kind == "jsonl":
            write_jsonl(path, row)
        elif kind == "json":
            path.write_text(json.dumps([row]))
        elif kind == "saved":
            datasets.Dataset.from_list([row]).save_to_disk(str(path))
        else:
            write_repository(path, PUBLISHED[name].hub, row)
        paths[name] = str(path)
    mixture = read_mixture(dict.fromkeys(ROWS, 1), paths, seed=0)
    assert [d.dialogue_id for d in mixture.dialogues] == [f"{name}/1" for name in ROWS]
    assert all(count.num_kept == count.num_rows == 1 for count in mixture.counts)


def write_repository(path: Path, hub: str, row: dict) -> None:
    """A folder as the hub keeps a set: a card that names config and split, and the rows."""
    name, split = hub.removeprefix("hub:").split(":")
    config = name.split("/")[2] if name.count("/") == 2 else "default"
    (path / "SFT" / split).mkdir(parents=True)
    write_jsonl(path / "SFT" / split / "rows.jsonl", row)
    (path / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n"
        f"    path: SFT/{split}/*.jsonl\n---\n"
    )


def test_magicoders_second_release_is_recognised(tmp_path):
    path = write_parquet(tmp_path / "evol.parquet", MAGICODER_EVOL)
    (dialogue,) = read_mixture({"magicoder": 5}, {"magicoder": path}, seed=0).dialogues
    assert [m.role for m in dialogue.messages] == ["user", "assistant"]


def test_every_row_is_counted_where_it_went(tmp_path):
    rows = [
        *(tulu(n) for n in range(6)),
        tulu(6, "<think>Let me see.</think>Paris"),
        tulu(7, r"So the answer is \boxed{4}."),
        tulu(8, "Wait, hmm. Let me double-check. Alternatively, we could ask. Paris."),
        tulu(9, "Say <answer>Paris</answer>"),
        tulu(10, " "),
    ]
    path = write_parquet(tmp_path / "tulu.parquet", *rows)
    (count,) = read_mixture({"tulu-3": 4}, {"tulu-3": path}, seed=0).counts
    assert count.row() == {
        "source": "tulu-3",
        "wanted": 4,
        "rows": 11,
        "kept": 4,
        "not_drawn": 2,
        "reasoning": {"boxed answer": 1, "thinking tags": 1, "thinks aloud": 1},
        "unusable": {"empty message": 1, "spells a tag of the template": 1},
    }


def test_nemotrons_rows_with_reasoning_on_are_left_out(tmp_path):
    rows = [
        NEMOTRON,
        NEMOTRON | {"reasoning": "on"},
        NEMOTRON | {"reasoning": "off", "system_prompt": "detailed thinking on"},
    ]
    path = write_jsonl(tmp_path / "chat.jsonl", *rows)
    mixture = read_mixture({"nemotron-chat": 5}, {"nemotron-chat": path}, seed=0)
    assert len(mixture.dialogues) == 1
    (count,) = mixture.counts
    assert count.reasoning == {"column reasoning": 1, "system prompt: thinking on": 1}


def test_a_draw_depends_on_the_seed_and_not_on_what_stands_elsewhere(tmp_path):
    path = write_parquet(tmp_path / "tulu.parquet", *(tulu(n) for n in range(50)))

    def drawn(seed: int) -> list[str]:
        mixture = read_mixture({"tulu-3": 10}, {"tulu-3": path}, seed=seed)
        return [d.dialogue_id for d in mixture.dialogues]

    assert drawn(1) == drawn(1) != drawn(2)
    assert [int(name.split("/")[1]) for name in drawn(1)] == sorted(
        int(name.split("/")[1]) for name in drawn(1)
    )


def test_a_file_in_another_layout_names_the_columns_seen(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", {"question": "1?", "answer": "1"})
    with pytest.raises(SourceError) as raised:
        read_mixture({"glaive": 5}, {"glaive": path}, seed=0)
    assert "expected the columns system, chat, seen: question, answer" in str(raised.value)


def test_rows_of_mixed_types_are_listed(tmp_path):
    rows = [TULU, TULU | {"messages": "text"}, TULU | {"messages": None}, {"id": "1"}]
    path = write_jsonl(tmp_path / "x.jsonl", *rows)
    with pytest.raises(SourceError) as raised:
        read_mixture({"tulu-3": 5}, {"tulu-3": path}, seed=0)
    assert "3 malformed rows, nothing was started" in str(raised.value)
    assert "row 2: not in the published layout (TypeError" in str(raised.value)
    assert "row 4: not in the published layout (KeyError: 'messages')" in str(raised.value)


def test_a_truncated_parquet_file_is_explained(tmp_path):
    path = Path(write_parquet(tmp_path / "x.parquet", TULU))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SourceError, match="not a readable Parquet file"):
        read_mixture({"tulu-3": 5}, {"tulu-3": str(path)}, seed=0)


def test_a_copy_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceError, match="no such file"):
        read_mixture({"tulu-3": 5}, {"tulu-3": str(tmp_path / "absent.parquet")}, seed=0)


@pytest.mark.parametrize("damage", ["truncated", "no such split"])
def test_a_repository_that_cannot_be_read_is_named(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "repository"
    hub = PUBLISHED["tulu-3"].hub
    if damage == "no such split":
        write_repository(folder, hub.replace(":train", ":test"), TULU)
    else:
        write_repository(folder, hub, TULU)
        rows = folder / "SFT" / "train" / "rows.jsonl"
        rows.write_text(rows.read_text()[:-20])
    with pytest.raises(SourceError, match="or a copy of it on disk") as raised:
        read_mixture({"tulu-3": 5}, {"tulu-3": str(folder)}, seed=0)
    assert str(folder) in str(raised.value)
