"""Which problem is which, and which problems a step draws: identity, splits by hash, draws.

Pure functions of their arguments; reads and writes nothing. A draw is a function of problem set,
seed, stage, step and round, so that a resumed step draws the same problems. Deliberately does not
know where problems come from (`rstar2.arithmetic`, `data_catalog.sources`) nor what became of them.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import unicodedata
from collections.abc import Collection, Mapping, Sequence

from rstar2.types import Problem


def normalised_question(question: str) -> str:
    """The question in Unicode form NFC, lower case, with single spaces: what the identity sees."""
    return " ".join(unicodedata.normalize("NFC", question).lower().split())


def problem_id(question: str) -> str:
    """Hash of the normalised question, 16 hex digits."""
    return hashlib.sha256(normalised_question(question).encode()).hexdigest()[:16]


def problem_set_hash(problems: Sequence[Problem]) -> str:
    """Identity of a set of problems, 16 hex digits; the order does not matter."""
    rows = sorted(f"{p.problem_id} {p.answer} {p.source}" for p in problems)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def is_held_out(problem_id: str, *, one_in: int = 4) -> bool:
    """Whether the hash keeps this problem for evaluation: about one of `one_in`, for ever."""
    return int(problem_id, 16) % one_in == 0


def has_prefix(source: str, prefix: str) -> bool:
    """Whether `source` is `prefix` or lies under it: `a/b/c` is under `a/b`, `a/bc` is not."""
    return source == prefix or source.startswith(prefix + "/")


def draw_problems(
    problems: Sequence[Problem],
    *,
    stage: str,
    step: int,
    round: int,
    num: int,
    shares: Mapping[str, float],
    seed: int,
    drawn: Collection[str] = (),
) -> tuple[Problem, ...]:
    """The problems of one round of a step: round 0 is the step's own draw, later ones refill.

    `step` is 1-based. `num` of round 0 must be the same at every step of the stage: step s takes
    the s-th slice of an endless row of shuffled epochs, so nothing repeats within an epoch.
    `shares` gives the share of a draw by source prefix, the longest that fits; the rest of the set
    fills up (no shares: uniform). A share of which the set has no problem goes to the others.
    Fractions of a problem are spread over the steps. Round r >= 1 needs `drawn`, the ids of all
    problems drawn in the step so far, and repeats none of them; it returns fewer than `num` when
    the set is exhausted.
    """
    if round > 0 and not drawn:
        raise ValueError(
            f"round {round} of step {step} was drawn without `drawn`: pass the ids of the problems "
            "that earlier rounds of this step drew, so that none repeats"
        )
    key = f"{problem_set_hash(problems)}/{seed}/{stage}"
    strata = _strata(problems, shares)
    if round == 0:
        counts = _counts_of_step(strata, num, step)
        chosen = [
            problem
            for (name, (members, _)), (before, now) in zip(strata.items(), counts, strict=True)
            for problem in _slice_of_epochs(members, before, now, f"{key}/{name}")
        ]
    else:
        chosen = _refill(strata, num, drawn, f"{key}/{step}/{round}")
    random.Random(f"{key}/{step}/{round}/order").shuffle(chosen)
    return tuple(chosen)


def _strata(
    problems: Sequence[Problem], shares: Mapping[str, float]
) -> dict[str, tuple[list[Problem], float]]:
    """Members and share by prefix, longest prefix first; `` is the rest. Empty strata give way."""
    left = sorted(problems, key=lambda p: p.problem_id)
    members: dict[str, list[Problem]] = {}
    for prefix in sorted(shares, key=lambda name: (-len(name), name)):
        members[prefix] = [p for p in left if has_prefix(p.source, prefix)]
        left = [p for p in left if not has_prefix(p.source, prefix)]
    members[""] = left
    weights = {name: shares.get(name, 0.0) for name in members}
    weights[""] = max(0.0, 1.0 - sum(shares.values()))
    total = sum(weights[name] for name, group in members.items() if group)
    if total <= 0.0:
        raise ValueError(
            f"no problem can be drawn: {len(problems)} problems, shares {dict(shares)}; expected "
            "problems under one of these source prefixes, or shares that sum to less than 1"
        )
    return {name: (group, weights[name] / total) for name, group in members.items() if group}


def _counts_of_step(
    strata: Mapping[str, tuple[list[Problem], float]], num: int, step: int
) -> list[tuple[int, int]]:
    """(drawn before this step, drawn after it) by stratum; the differences sum to `num`."""

    def cumulative(steps: int) -> list[int]:
        # Rounded running totals of the shares, so that every step sums to `num` exactly.
        edges, running = [0], 0.0
        for _, share in strata.values():
            running += share
            edges.append(round_half_up(running * num * steps))
        edges[-1] = num * steps
        return [after - before for before, after in itertools.pairwise(edges)]

    return list(zip(cumulative(step - 1), cumulative(step), strict=True))


def round_half_up(value: float) -> int:
    """The nearest integer, halves up (`round` goes to the even one)."""
    return int(value + 0.5)


def _slice_of_epochs(members: Sequence[Problem], start: int, stop: int, key: str) -> list[Problem]:
    """Positions [start, stop) of the endless row: epoch after epoch, each shuffled anew."""
    chosen: list[Problem] = []
    epoch = start // len(members)
    while epoch * len(members) < stop:
        row = list(members)
        random.Random(f"{key}/epoch {epoch}").shuffle(row)
        first = epoch * len(members)
        chosen += row[max(start - first, 0) : max(stop - first, 0)]
        epoch += 1
    return _without_repeats(chosen, members, stop - start)


def _without_repeats(
    chosen: Sequence[Problem], members: Sequence[Problem], num: int
) -> list[Problem]:
    """A slice over an epoch's edge can name a problem twice: another member stands in."""
    unique = {p.problem_id: p for p in chosen}
    for member in members:
        if len(unique) >= min(num, len(members)):
            break
        unique.setdefault(member.problem_id, member)
    return list(unique.values())


def _refill(
    strata: Mapping[str, tuple[list[Problem], float]],
    num: int,
    drawn: Collection[str],
    key: str,
) -> list[Problem]:
    """`num` problems not in `drawn`, by share as far as the strata last, then from what is left."""
    generator = random.Random(key)
    taken = set(drawn)
    rows = {}
    for name, (members, _) in strata.items():
        rows[name] = [p for p in members if p.problem_id not in taken]
        generator.shuffle(rows[name])
    chosen: list[Problem] = []
    running, offset = 0.0, generator.random()
    edges = [0]
    for _, share in strata.values():
        running += share
        edges.append(int(running * num + offset))
    edges[-1] = num
    for name, (start, stop) in zip(strata, itertools.pairwise(edges), strict=True):
        chosen += rows[name][: max(stop - start, 0)]
        rows[name] = rows[name][max(stop - start, 0) :]
    rest = [p for row in rows.values() for p in row]
    return chosen + rest[: num - len(chosen)]
