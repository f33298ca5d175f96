"""`rstar2 sft`: the SFT data before a run: the mixture as a file, and its rewriting by a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter, validators

from flows.commands.options import check_input

if TYPE_CHECKING:
    from data_catalog.sft_sources.mixture import Mixture
    from infra.rewriting import Rewriting

app = App(
    name="sft",
    help="SFT data of public sets: mix it, and have a model rewrite it.\n\n"
    "Example: rstar2 sft mix mine.toml dialogues.jsonl",
)
DONE, SOME_FAILED = 0, 1


@app.command
def mix(
    profile: str,
    output: Path,
    /,
    *,
    set: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> int:
    """Write the mixture of a profile as one file of dialogues, and say what was left out.

    Example: rstar2 sft mix laptop dialogues.jsonl --set sft.paths.toolace=data.json

    Parameters
    ----------
    profile
        laptop, smoke, or the path of a TOML file: its [sft] table names sets, shares and copies.
    output
        A JSONL file; a run reads it with --set sft.data=FILE.
    set
        Overrides one setting; may be repeated.
    """
    from data_catalog.sft_sources.mixture import read_mixture
    from rstar2.config import ConfigError
    from rstar2.dialogues import write_dialogues
    from rstar2.profiles import load_config

    config = load_config(profile, set or [])
    if config.sft is None:
        raise ConfigError(f"profile {profile!r} has no [sft] table: expected one with a mixture")
    mixture = read_mixture(config.sft.mixture, config.sft.paths, seed=config.seed)
    write_dialogues(output, mixture.dialogues)
    _print_counts(mixture)
    print(f"{output}: {len(mixture.dialogues)} dialogues")
    return DONE


@app.command
def rewrite(
    source: Path,
    output: Path,
    /,
    *,
    endpoint: str,
    model: str,
    in_flight: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 16,
    attempts: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 5,
    timeout: Annotated[float, Parameter(validator=validators.Number(gt=0))] = 120.0,
) -> int:
    """Have a model write the responses of the instruction set and the prompts of the chat set anew.

    Example: rstar2 sft rewrite dialogues.jsonl better.jsonl --endpoint https://api.openai.com/v1
    --model o4-mini. The key is read from OPENAI_API_KEY. Killed, the same command goes on: what was
    answered is in OUTPUT.answers and is not asked again. What stood before is kept as `original`.

    Parameters
    ----------
    source
        A file that `rstar2 sft mix` wrote.
    output
        The file to write, in the same layout.
    model
        Name of the model, as the API calls it.
    endpoint
        Address of an OpenAI-compatible API, up to /v1.
    in_flight
        Questions asked at once.
    attempts
        Tries for each question.
    timeout
        Seconds for each try.
    """
    from infra.chat_endpoint import Endpoint
    from infra.rewriting import rewrite_dialogues
    from infra.settings import load_settings
    from rstar2.config import ChatConfig
    from rstar2.dialogues import read_dialogues, write_dialogues

    check_input(source)
    asked = Endpoint(
        url=endpoint,
        model=model,
        api_key=load_settings().writing_api_key,
        max_attempts=attempts,
        timeout_seconds=timeout,
    )
    result = rewrite_dialogues(
        read_dialogues(source, ChatConfig()),
        asked,
        output.with_name(f"{output.name}.answers"),
        in_flight=in_flight,
        on_answer=_say_progress,
    )
    write_dialogues(output, result.dialogues)
    _print_result(result, output)
    return SOME_FAILED if result.num_unanswered else DONE


def _say_progress(num_answered: int, num_all: int) -> None:
    if num_answered % 1000 == 0:
        print(f"{num_answered} of {num_all} questions answered", flush=True)


def _print_counts(mixture: Mixture) -> None:
    for count in mixture.counts:
        print(
            f"{count.source}: {count.num_kept} of {count.num_wanted} wanted, from {count.num_rows} "
            f"rows; {count.num_not_drawn} more could be used"
        )
        for reason, number in sorted(count.reasoning.items()):
            print(f"  {number} left out, reasoning: {reason}")
        for reason, number in sorted(count.unusable.items()):
            print(f"  {number} left out: {reason}")


def _print_result(result: Rewriting, output: Path) -> None:
    print(f"{output}: {len(result.dialogues)} dialogues, {result.num_rewritten} of them rewritten")
    print(f"  {result.num_asked} questions asked now, {result.num_unanswered} unanswered")
    for reason, number in sorted(result.kept_as_they_were.items()):
        print(f"  {number} kept as they were: {reason}")
    if result.num_unanswered:
        print("the same command asks again what was not answered")
