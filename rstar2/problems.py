"""Which problem is which, and which problems a step draws: identity, splits by hash, draws.

Pure functions of their arguments; reads and writes nothing. A draw is a function of problem set,
seed, stage, step and round, so that a resumed step draws the same problems. Deliberately does not
know where problems come from (`rstar2.arithmetic`, `data_catalog.sources`) nor what became of them.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from rstar2.types import Problem

HELD_OUT_ONE_IN = 4


class DrawError(ValueError):
    """A stage's shares leave nothing to draw. Names them, and what is expected."""


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


def is_held_out(problem_id: str) -> bool:
    """Whether the hash keeps this problem for evaluation: about a quarter of all, for ever."""
    return int(problem_id, 16) % HELD_OUT_ONE_IN == 0


def is_hub_source(source: str) -> bool:
    """Whether a source is a set of the hub, `hub:OWNER/NAME[/CONFIG]:SPLIT`, and no path."""
    return source.startswith("hub:")


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
    fills up (no shares: uniform). Each share has its part of `num` rounded down or up, what is left
    over going to those that fell behind most. A share of which the set has no problem, or too few
    for one step, leaves its place to the others. Round r >= 1 needs `drawn`, the ids of all
    problems drawn in the step so far, and repeats none of them. Nothing repeats within a step;
    fewer than `num` are returned only when the set is exhausted.
    """
    if round > 0 and not drawn:
        raise ValueError(
            f"round {round} of step {step} was drawn without `drawn`: pass the ids of the problems "
            "that earlier rounds of this step drew, so that none repeats"
        )
    key = f"{problem_set_hash(problems)}/{seed}/{stage}"
    strata = _strata(problems, shares)
    if round == 0:
        counts = _counts_of_step([share for _, share in strata.values()], num, step)
        chosen = [
            problem
            for (name, (members, _)), (before, now) in zip(strata.items(), counts, strict=True)
            for problem in _slice_of_epochs(members, before, now, f"{key}/{name}")
        ]
        chosen += _stand_ins(strata, num, chosen, f"{key}/{step}/stand-ins")
    else:
        chosen = _refill(strata, num, drawn, f"{key}/{step}/{round}")
    random.Random(f"{key}/{step}/{round}/order").shuffle(chosen)
    return tuple(chosen)


def exact_share(share: float) -> Fraction:
    """The decimal that was written: 0.3 is 3/10, and 1 - 0.3 - 0.7 is 0."""
    return Fraction(share).limit_denominator(10**6)


def largest_remainder(
    shares: Sequence[Fraction], num: int, *, owed: Sequence[Fraction | int] = ()
) -> list[int]:
    """`num` things by shares that sum to 1: each rounded down, the rest to the largest remainders.

    `owed` is added to the remainders: what earlier rounds gave too little (or, negative, too much).
    Of equal remainders the first counts.
    """
    counts = [math.floor(share * num) for share in shares]
    remainders = [
        share * num - count + more
        for share, count, more in zip(shares, counts, owed or [0] * len(shares), strict=True)
    ]
    order = sorted(range(len(shares)), key=lambda index: -remainders[index])
    for index in order[: num - sum(counts)]:
        counts[index] += 1
    return counts


Strata = Mapping[str, tuple[list[Problem], Fraction]]
"""Members and share by source prefix; `` is the rest of the set."""


def _strata(problems: Sequence[Problem], shares: Mapping[str, float]) -> Strata:
    """Longest prefix first. Strata without members, or with a share of 0, give way to the others."""
    left = sorted(problems, key=lambda p: p.problem_id)
    members: dict[str, list[Problem]] = {}
    for prefix in sorted(shares, key=lambda name: (-len(name), name)):
        members[prefix] = [p for p in left if has_prefix(p.source, prefix)]
        left = [p for p in left if not has_prefix(p.source, prefix)]
    members[""] = left
    weights = {name: exact_share(share) for name, share in shares.items()}
    weights[""] = max(Fraction(0), 1 - sum(weights.values(), Fraction(0)))
    names = [name for name, group in members.items() if group and weights[name] > 0]
    total = sum(weights[name] for name in names)
    if not total:
        raise DrawError(
            f"no problem can be drawn: {len(problems)} problems, shares {dict(shares)}; expected "
            "problems under one of these source prefixes, or shares that sum to less than 1"
        )
    return {name: (members[name], weights[name] / total) for name in names}


def _counts_of_step(shares: Sequence[Fraction], num: int, step: int) -> list[tuple[int, int]]:
    """(drawn before this step, drawn after it) by stratum; the differences sum to `num`."""
    before, now = [0] * len(shares), [0] * len(shares)
    for done in range(step):
        owed = [share * num * done - n for share, n in zip(shares, now, strict=True)]
        counts = largest_remainder(shares, num, owed=owed)
        before, now = now, [n + count for n, count in zip(now, counts, strict=True)]
    return list(zip(before, now, strict=True))


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


def _stand_ins(strata: Strata, num: int, chosen: Sequence[Problem], key: str) -> list[Problem]:
    """For what strata smaller than their part of a step lack: problems of the other strata."""
    if len(chosen) >= num:
        return []
    taken = {p.problem_id for p in chosen}
    left = [p for members, _ in strata.values() for p in members if p.problem_id not in taken]
    random.Random(key).shuffle(left)
    return left[: num - len(chosen)]


def _refill(strata: Strata, num: int, drawn: Collection[str], key: str) -> list[Problem]:
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
        running += float(share)
        edges.append(int(running * num + offset))
    edges[-1] = num
    for name, (start, stop) in zip(strata, itertools.pairwise(edges), strict=True):
        chosen += rows[name][: stop - start]
        rows[name] = rows[name][stop - start :]
    rest = [p for row in rows.values() for p in row]
    return chosen + rest[: num - len(chosen)]
