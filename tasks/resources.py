"""What a stage works with: ledger, rollout pool, sandbox and trainer, opened together.

One context manager does both ends of the scale: on one machine it owns engine and trainer and finds
or starts the sandbox daemon, which outlives it. Deliberately no dataclass: Prefect walks into
dataclass arguments, and there is a model in here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from infra.health import ResourceError
from infra.rollout.pool import RolloutPool, open_pool
from infra.sandbox.client import Sandbox, open_sandbox
from infra.sandbox.remembered import RememberingExecute
from infra.sandbox.resident import SandboxError
from infra.settings import load_settings
from infra.trainer.base_model import load_tokenizer, model_folder_of
from infra.trainer.local import LocalTrainer, open_trainer
from rstar2.chat import Chat, open_chat
from rstar2.config import RecipeConfig
from rstar2.prompt import PYTHON_TOOL
from rstar2.protocols import Execute
from rstar2.types import ArtifactRef, Losses
from tasks.ledger import Ledger
from tasks.template import check_template


class Resources:
    """Open resources of one stage."""

    __slots__ = (
        *("_trainer", "chat", "config", "execute", "ledger", "loop", "num_failed_rollouts"),
        *("num_rollouts_redone", "pool", "sandbox"),
    )

    def __init__(
        self,
        *,
        config: RecipeConfig,
        ledger: Ledger,
        chat: Chat,
        sandbox: Sandbox,
        execute: Execute,
        pool: RolloutPool,
        trainer: LocalTrainer | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.chat = chat
        self.sandbox = sandbox
        self.execute = execute
        self.pool = pool
        self._trainer = trainer
        self.loop = loop
        self.num_rollouts_redone = self.num_failed_rollouts = 0

    @property
    def trains(self) -> bool:
        return self._trainer is not None

    @property
    def trainer(self) -> LocalTrainer:
        assert self._trainer is not None, "this stage was opened with trains=False"
        return self._trainer

    def losses(self) -> Losses:
        """What was lost and redone since these were opened."""
        return Losses(
            num_sandbox_restarts=self.sandbox.num_restarts,
            num_calls_redone=self.sandbox.num_calls_redone,
            num_rollouts_redone=self.num_rollouts_redone,
            num_failed_rollouts=self.num_failed_rollouts,
        )


@contextmanager
def open_resources(
    ledger: Ledger, config: RecipeConfig, *, checkpoint: ArtifactRef, trains: bool
) -> Iterator[Resources]:
    """Opens what a stage needs, with the policy of `checkpoint` live in pool and trainer.

    Raises `ResourceError` where no sandbox can be had.
    """
    folder = ledger.store.local_path(checkpoint)
    with ExitStack() as stack:
        # Not `Runner.run`: its SIGINT handler prints the finished task, with all rollouts in it.
        loop = stack.enter_context(asyncio.Runner()).get_loop()
        sandbox_manager = open_sandbox(config.sandbox, load_settings().state_folder)
        try:
            sandbox = loop.run_until_complete(sandbox_manager.__aenter__())
        except SandboxError as error:
            raise ResourceError(f"sandbox: {error}") from error
        stack.callback(lambda: loop.run_until_complete(sandbox_manager.__aexit__(None, None, None)))
        trainer = open_trainer(folder, config) if trains else None
        model = model_folder_of(folder)
        pool = stack.enter_context(open_pool(model, config))
        chat = open_chat(load_tokenizer(model), config.chat, [PYTHON_TOOL])
        check_template(ledger, chat)
        yield Resources(
            config=config,
            ledger=ledger,
            chat=chat,
            sandbox=sandbox,
            execute=RememberingExecute(sandbox.execute)
            if config.sandbox.remembers_pure_calls
            else sandbox.execute,
            pool=pool,
            trainer=trainer,
            loop=loop,
        )
