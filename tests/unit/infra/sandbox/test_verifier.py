"""The batches' rules. The checker here is a table: what it says, and where it dies."""

from collections.abc import Sequence

from infra.sandbox.verifier import BATCH_PAIRS, Pair, grade_pairs
from rstar2.types import VerdictKind

CORRECT, INCORRECT, UNDECIDED = (
    VerdictKind.CORRECT,
    VerdictKind.INCORRECT,
    VerdictKind.UNDECIDED,
)
# Pairs that text alone does not decide.
GOOD = ("x^2-1", "(x-1)(x+1)")
BAD = ("x^2-1", "(x-1)(x+2)")
HANGS = ("x^2-1", "(x-3)(x+1)")
CRASHES = ("x^2-1", "(x-4)(x+1)")
LOST = ("x^2-1", "(x-5)(x+1)")


class Checker:
    def __init__(self) -> None:
        self.batches: list[list[Pair]] = []

    async def __call__(self, pairs: Sequence[Pair]) -> tuple[list[list[str]], str]:
        self.batches.append(list(pairs))
        records = []
        for pair in pairs:
            if pair == HANGS:
                return records, "timeout_cpu"
            if pair == CRASHES:
                return records, "signal"
            if pair == LOST:
                return records, "infra_error"
            records.append(["correct" if pair == GOOD else "incorrect", "table"])
        return records, "ok"


async def kinds(pairs: Sequence[Pair], checker: Checker) -> list[VerdictKind]:
    return [verdict.kind for verdict in await grade_pairs(pairs, checker)]


async def test_equal_text_never_reaches_the_checker() -> None:
    checker = Checker()
    assert await kinds([("7", "7"), ("7", "8")], checker) == [CORRECT, INCORRECT]
    assert checker.batches == []


async def test_the_offender_is_undecided_and_the_rest_run_again() -> None:
    checker = Checker()
    assert await kinds([GOOD, HANGS, BAD], checker) == [CORRECT, UNDECIDED, INCORRECT]
    assert checker.batches == [[GOOD, HANGS, BAD], [BAD]]


async def test_a_crash_is_undecided_too_and_says_so() -> None:
    verdicts = await grade_pairs([CRASHES, GOOD], Checker())
    assert [v.kind for v in verdicts] == [UNDECIDED, CORRECT]
    assert verdicts[0].reason == "the check ended without a verdict (signal)"


async def test_a_fault_of_the_sandbox_leaves_the_rest_undecided_and_blames_nobody() -> None:
    assert await kinds([GOOD, LOST, BAD], Checker()) == [CORRECT, UNDECIDED, UNDECIDED]


async def test_pairs_that_repeat_are_checked_once_and_answered_in_order() -> None:
    checker = Checker()
    assert await kinds([BAD, GOOD, BAD, GOOD], checker) == [INCORRECT, CORRECT, INCORRECT, CORRECT]
    assert checker.batches == [[BAD, GOOD]]


async def test_many_pairs_are_cut_into_batches() -> None:
    checker = Checker()
    pairs = [("x^2-1", f"(x-{i})(x+7)") for i in range(2 * BATCH_PAIRS + 1)]
    assert set(await kinds(pairs, checker)) == {INCORRECT}
    assert sorted(map(len, checker.batches)) == [1, BATCH_PAIRS, BATCH_PAIRS]


async def test_an_answer_that_is_no_unicode_is_undecided() -> None:
    assert await kinds([("x^2", "\ud800x")], Checker()) == [UNDECIDED]


async def test_nothing_to_grade_is_no_verdict() -> None:
    assert await grade_pairs([], Checker()) == []
