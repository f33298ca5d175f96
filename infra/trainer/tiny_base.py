"""Makes the base model that ships for `smoke`: `python -m infra.trainer.tiny_base`.

Runs the laptop profile's SFT with a seed of its own and writes the weights, halved to float16, with
their tokenizer to `rstar2/recipes/tiny_base` (or the folder given). It has seen format and tool use
only, as every model after SFT; no RL.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from infra.settings import prepare_torch_environment
from rstar2.profiles import load_config

SEED = 2508
"""Of weights, conversations and batches; runs that measure learning use others."""


def make_tiny_base(folder: Path) -> None:
    """Trains the model and writes it to `folder`; about a minute on two cores."""
    prepare_torch_environment()
    import torch  # after its environment is set

    from infra.trainer.base_model import load_tokenizer, make_base_model
    from infra.trainer.local import open_trainer
    from rstar2.chat import open_chat
    from rstar2.prompt import PYTHON_TOOL
    from rstar2.sft_data import make_conversations
    from rstar2.training.weights import load_model, save_model

    config = load_config("laptop", [f"seed={SEED}"])
    assert config.sft is not None, "the laptop profile begins with SFT"
    torch.set_num_threads(config.num_threads)
    with tempfile.TemporaryDirectory() as temporary:
        base, trained = Path(temporary) / "base", Path(temporary) / "trained"
        make_base_model(base, config)
        tokenizer = load_tokenizer(base)
        chat = open_chat(tokenizer, config.chat, [PYTHON_TOOL])
        conversations = make_conversations(config.sft.num_conversations, SEED)
        examples = [chat.render_conversation(each) for each in conversations]
        trainer = open_trainer(base, config)
        losses = trainer.sft(examples, start=0, stop=config.sft.num_steps)
        trainer.save(trained)
        save_model(load_model(trained / "model", "float32").half(), tokenizer, folder)
    print(f"{folder}: {len(losses)} steps, loss {sum(losses[-50:]) / len(losses[-50:]):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    shipped = Path(__file__).parents[2] / "rstar2" / "recipes" / "tiny_base"
    parser.add_argument("folder", nargs="?", type=Path, default=shipped)
    make_tiny_base(parser.parse_args().folder)


if __name__ == "__main__":
    main()
