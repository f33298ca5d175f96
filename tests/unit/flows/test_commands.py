"""The `rstar2` command: exit codes, help, what is loaded for which group."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.commands import main
from flows.commands.main import app

LIGHT = ["catalog", "doctor", "grade", "ingest", "plan", "sandbox"]


def pages() -> list[tuple[str, ...]]:
    """Every command and every command of a group."""
    names: list[tuple[str, ...]] = []
    for name in (n for n in app if not n.startswith("-")):
        subcommands = [n for n in app[name] if not n.startswith("-")]
        names += [(name, sub) for sub in subcommands] or [(name,)]
    return names


@pytest.mark.parametrize("page", pages(), ids=" ".join)
def test_help_shows_an_example(page: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*page, "--help"]) == 0
    assert f"rstar2 {' '.join(page)}" in capsys.readouterr().out.partition("Example")[2]


@pytest.mark.parametrize("page", pages(), ids=" ".join)
def test_help_explains_every_parameter(page: tuple[str, ...]) -> None:
    command = app[page[0]] if len(page) == 1 else app[page[0]][page[1]]
    given = command.assemble_argument_collection(parse_docstring=True)
    assert [argument.name for argument in given if not argument.parameter.help] == []


@pytest.mark.parametrize("name", LIGHT)
def test_light_groups_load_neither_prefect_nor_torch(name: str) -> None:
    program = (
        "import sys, contextlib, io\n"
        "from flows.commands import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    code = main(['{name}', '--help'])\n"
        "print(code, [m for m in ('prefect', 'torch', 'transformers') if m in sys.modules])"
    )
    assert _python("-c", program).stdout.strip() == "0 []"


def test_plan_loads_neither_prefect_nor_torch() -> None:
    program = (
        "import sys\n"
        "from flows.commands import main\n"
        "code = main(['plan', 'laptop', '--json'])\n"
        "print(code, [m for m in ('prefect', 'torch', 'transformers') if m in sys.modules])"
    )
    assert _python("-c", program).stdout.splitlines()[-1] == "0 []"


def test_nouns_and_configuration_load_neither_prefect_nor_torch() -> None:
    program = (
        "import sys, rstar2.types, rstar2.config\n"
        "print([m for m in ('prefect', 'torch', 'transformers') if m in sys.modules])"
    )
    assert _python("-c", program).stdout.strip() == "[]"


def test_version_names_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rstar2 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["plan"],
        ["plan", "laptop", "--nonsense"],
        ["plan", "no-such-profile"],
        ["plan", "laptop", "--set", "seed=word"],
        ["plan", "laptop", "--set", "no.such.key=1"],
        ["plan", "laptop", "--set", "seed"],
        ["plan", "laptop", "--set", "model.base=/no/such/folder"],
        ["run", "no-such-profile"],
        ["run", "smoke", "--run", ""],
        ["run", "smoke", "--problems", ""],
        ["run", "smoke", "--set", f"storage={__file__}"],
        ["ingest", "", "--out", "never"],
        ["ingest", __file__, "--reference", "", "--out", "never"],
        ["grade", "--gold", "4", "--text-file", "/no/such"],
        ["grade", "--gold", "4", "--text-file", "/"],
        ["sandbox", "exec", "/no/such.py"],
        ["sandbox", "exec", __file__, "--stdin-file", "/no/such"],
        ["sandbox", "exec", __file__, "--call-id", ""],
        ["sandbox", "exec", __file__, "--memory-mib=0"],
        ["sandbox", "exec", __file__, "--cpu-seconds=-1"],
        ["sandbox", "exec", __file__, "--wall-seconds=nan"],
        ["sandbox", "serve", "--num-slots=0"],
        ["sandbox", "bench", "--num-slots=0"],
        ["sandbox", "bench", "--in-flight=0"],
        ["sft", "rewrite", "/no/such", "o.jsonl", "--endpoint", "http://x/v1", "--model", "m"],
        ["catalog", "sql", "select 1", "--storage", "/no/such"],
        ["filter", "show", "demo", "--storage", __file__],
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert not list(tmp_path.iterdir())


def test_a_wrong_option_of_the_sandbox_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "exec", __file__, "--memory-mib=0"]) == 2
    said = "rstar2: --memory-mib 0: Input should be greater than or equal to 1\n"
    assert capsys.readouterr().err == said


def test_a_wrong_setting_is_named_with_value_and_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["plan", "laptop", "--set", "stages.rl-1.group_size=1"])
    message = capsys.readouterr().err
    assert "stages.rl-1" in message
    assert "group_size = 1" in message
    assert "set group_size to 2 or more" in message
    assert "Traceback" not in message


def test_plan_prints_config_and_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "laptop", "--set", "seed=3", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["config"]["seed"] == 3
    assert tree["plan"]["stages"][0]["stage"] == "rl-1"


def test_a_run_name_that_cannot_name_a_run_is_refused(tmp_path: Path) -> None:
    storage = f"storage={tmp_path}"
    assert main(["run", "laptop", "--run", "42", "--set", storage]) == 2


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
