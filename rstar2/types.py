"""The nouns of the house: frozen values that pass between rooms.

Reads and writes nothing. Arrays are read-only numpy and never compared with `==` (`eq=False`);
what can be derived is a property. A paper-size step holds more than 100 million token ids, hence
arrays and not tuples. Loads neither torch nor prefect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
Logprobs = NDArray[np.float32]
Mask = NDArray[np.bool_]


def read_only(values: object, dtype: type[np.generic]) -> NDArray:
    """A read-only array of `dtype`: the form in which every array of a noun is held."""
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


class FinishReason(StrEnum):
    """Why an engine stopped a completion, mapped from the engine's own words in one place."""

    STOP = "stop"
    """A stop token was sampled; it is the last id of the completion."""
    LENGTH = "length"
    """`max_new_tokens` was reached."""


class ToolStatus(StrEnum):
    """How a tool call ended. All but `ok` and `unavailable` count in p_err (report E4)."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MALFORMED = "malformed"
    UNKNOWN_TOOL = "unknown_tool"
    UNAVAILABLE = "unavailable"
    """The sandbox could not run it. Not the policy's fault: the rollout ends as `failed`."""


TOOL_ERRORS = frozenset(
    {ToolStatus.ERROR, ToolStatus.TIMEOUT, ToolStatus.MALFORMED, ToolStatus.UNKNOWN_TOOL}
)


class RolloutStatus(StrEnum):
    COMPLETED = "completed"
    TRUNCATED_LENGTH = "truncated_length"
    """Stopped by the response-token limit: the gate's truncation rate counts these."""
    TRUNCATED_TURNS = "truncated_turns"
    """Stopped by the turn limit: shown beside the rate, not counted in it."""
    FAILED = "failed"
    """A resource was unavailable: no reward, left out of its group, counted."""


class VerdictKind(StrEnum):
    CORRECT = "correct"
    INCORRECT = "incorrect"
    UNDECIDED = "undecided"


class GateVerdict(StrEnum):
    PROMOTE = "promote"
    CONTINUE = "continue"
    HOLD = "hold"
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A question with a checkable answer."""

    problem_id: str
    """Hash of the normalised question, 16 hex digits."""
    question: str
    answer: str
    source: str
    """Slash-separated, coarse to fine: `arithmetic/two-call/mul>add`, `user/singleop`."""
    pass_rate: float | None = None
    """Correct / attempts in [0, 1], where a filter or a source measured it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySpan:
    """Tokens `[start, stop)` of a completion that were sampled under `policy_version`."""

    policy_version: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Completion:
    """Tokens that the policy sampled in one turn."""

    token_ids: TokenIds  # [t]
    logprobs: Logprobs  # [t]
    """Under the behaviour policy, at the sampling temperature."""
    finish_reason: FinishReason
    policy_versions: tuple[PolicySpan, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A well-formed JSON call. Whether the tool exists is not known yet."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class MalformedToolCall:
    """Text between call tags that is no call; answered with `reason`, the loop goes on."""

    reason: str
    position: int
    """Character offset in the turn's text at which parsing failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    status: ToolStatus
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    """Value of a last expression, as IPython shows it; empty for None."""
    detail: str = ""
    """The status in a sentence: which limit fired, what was malformed."""
    seconds: float = 0.0
    """Wall time from issue to result."""
    is_truncated: bool = False
    """Output was cut, by the sandbox or by `observation_max_tokens`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Turn:
    """One completion and the observation that answered it (empty for the last turn)."""

    completion: Completion
    tool_calls: tuple[ToolCall | MalformedToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    """As many as `tool_calls`, in order; empty where the calls were not run."""
    observation_token_ids: TokenIds = field(default_factory=lambda: read_only([], np.int32))  # [o]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rollout:
    """One attempt at a problem: all turns and how it ended."""

    rollout_id: str
    problem_id: str
    prompt_token_ids: TokenIds  # [p]
    turns: tuple[Turn, ...]
    status: RolloutStatus
    answer: str | None
    """Text of the last `\\boxed{}` inside the last `<answer>` of the sampled text, or None."""
    num_answer_tags: int
    """Number of `<answer>` tags in sampled text; with `num_turns` it gives p_format (E5)."""
    reward: float | None = None
    """1.0 or 0.0; None where undecided or failed."""
    verdict_reason: str = ""

    @property
    def num_turns(self) -> int:
        return len(self.turns)

    @property
    def is_truncated(self) -> bool:
        """Stopped by the length limit (the gate's rate), not by the turn limit."""
        return self.status is RolloutStatus.TRUNCATED_LENGTH

    @property
    def num_tool_calls(self) -> int:
        return sum(len(turn.tool_results) for turn in self.turns)

    @property
    def num_tool_errors(self) -> int:
        return sum(r.status in TOOL_ERRORS for turn in self.turns for r in turn.tool_results)

    @property
    def tool_error_rate(self) -> float:
        """Errors / calls, 0.0 without a call (p_err's 0.5 is RoC's business, see `roc`)."""
        return self.num_tool_errors / self.num_tool_calls if self.num_tool_calls else 0.0

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(turn.completion.token_ids) for turn in self.turns)

    @property
    def num_response_tokens(self) -> int:
        """Sampled plus observation tokens: what the length limit counts."""
        return self.num_sampled_tokens + sum(len(t.observation_token_ids) for t in self.turns)

    @property
    def token_ids(self) -> TokenIds:  # [T] = prompt, then completion and observation by turn
        parts = [self.prompt_token_ids]
        for turn in self.turns:
            parts += [turn.completion.token_ids, turn.observation_token_ids]
        return np.concatenate(parts).astype(np.int32, copy=False)

    @property
    def loss_mask(self) -> Mask:  # [T], true exactly on sampled tokens
        parts = [np.zeros(len(self.prompt_token_ids), dtype=np.bool_)]
        for turn in self.turns:
            parts.append(np.ones(len(turn.completion.token_ids), dtype=np.bool_))
            parts.append(np.zeros(len(turn.observation_token_ids), dtype=np.bool_))
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    kind: VerdictKind
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """The rollouts of one problem at one step: 2G as sampled, then the G that RoC kept."""

    problem_id: str
    rollouts: tuple[Rollout, ...]

    @property
    def decided(self) -> tuple[Rollout, ...]:
        """Rollouts with a reward; `failed` and undecided ones are left out."""
        return tuple(r for r in self.rollouts if r.reward is not None)

    @property
    def has_signal(self) -> bool:
        """Whether its rewards differ."""
        return len({r.reward for r in self.decided}) > 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sample:
    """A rollout flattened for training: four arrays of one length T."""

    rollout_id: str
    problem_id: str
    """Samples of one problem form a group: an optimizer update never splits them."""
    token_ids: TokenIds  # [T]
    loss_mask: Mask  # [T]
    behaviour_logprobs: Logprobs  # [T], 0.0 where masked
    advantage: float
    loss_weight: float
    """The recipe's normaliser, already divided: 1 / (group's sampled tokens x groups)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """The samples of one optimizer step."""

    stage: str
    step: int
    policy_version: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GateDecision:
    verdict: GateVerdict
    reason: str
    """One sentence a person can act on."""
    evidence: Mapping[str, float | int | str | bool | None]
    """The numbers that were seen, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactRef:
    """Address and hash of an immutable object: what Prefect tasks exchange for bulk."""

    kind: str
    uri: str
    """Relative to the store's root, so that a moved store stays valid."""
    sha256: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """avg@k on one set of problems, with a clustered 95 % interval."""

    name: str
    mean: float
    low: float
    high: float
    standard_error: float
    num_problems: int
    num_attempts: int
    num_undecided: int
    mean_response_tokens: float
    truncation_rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """What was lost while a stage worked, and what became of the work."""

    num_sandbox_restarts: int = 0
    """Sandbox daemons that were lost and found or started again."""
    num_calls_redone: int = 0
    """Tool calls and answer checks run again, since what ran them was lost."""
    num_rollouts_redone: int = 0
    """Rollouts sampled again, to the same tokens, since the sandbox had been away from them."""
    num_failed_rollouts: int = 0
    """Of those, the ones that could not be run the second time either."""

    def plus(self, other: Losses) -> Losses:
        names = [f.name for f in fields(self)]
        return Losses(**{n: getattr(self, n) + getattr(other, n) for n in names})

    def since(self, before: Losses) -> Losses:
        names = [f.name for f in fields(self)]
        return Losses(**{n: getattr(self, n) - getattr(before, n) for n in names})

    @property
    def sentence(self) -> str:
        """In words; empty where nothing was lost."""
        if self == Losses():
            return ""
        return (
            f"sandbox restarts: {self.num_sandbox_restarts}, calls redone: {self.num_calls_redone}, "
            f"rollouts redone: {self.num_rollouts_redone}, failed: {self.num_failed_rollouts}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    stage: str
    checkpoint: ArtifactRef
    problem_set: ArtifactRef | None
    """What the stage drew from; None for SFT."""
    last_step: int
    gate: GateDecision
    scores: tuple[Score, ...] = ()
    losses: Losses = Losses()
    """Of all its steps and scores, over every process that worked on it."""
