"""Ranks layouts: of those that fit comfortably the fastest, of equals a published or simple one."""

import math
from dataclasses import dataclass, field, replace

from megatron_operator.api.diagnostics import Diagnostics
from megatron_operator.catalog.entry import PublishedSizes
from megatron_operator.planner.checks.flag_requirements import EXPERT_OVERLAP
from megatron_operator.planner.checks.lint import overlaps_experts
from megatron_operator.planner.estimate.uncertainty import mean_error, spread
from megatron_operator.planner.search.enumerate import refusal, valid_layouts
from megatron_operator.planner.search.flag_layouts import with_flags
from megatron_operator.planner.search.problem import Candidate, PlanningProblem
from megatron_operator.planner.search.suitable_batch import batch_error
from megatron_operator.planner.search.too_large import believed_to_fit
from megatron_operator.planner.search.variants import fits, variants, with_time

EQUAL_SPEED = 0.02
"""Steps that are longer by at most this share count as equally fast, however precise the estimate is."""
NOT_COMPETITIVE = 1.25
"""Interleaved layouts are not timed where even without a bubble the step takes more than this times the
best."""


@dataclass(slots=True)
class Ranking:
    """Layouts in order, best first, and those that were dropped because of their memory."""

    candidates: list[Candidate] = field(default_factory=list)
    too_large: list[Candidate] = field(default_factory=list)
    valid: int = 0
    """Number of layouts that satisfy all constraints."""
    error: float = EQUAL_SPEED
    """Share of a step by which the estimate of such runs is off on average: shorter steps count as equal."""

    @property
    def best(self) -> Candidate | None:
        """The first candidate, if there is one."""
        return self.candidates[0] if self.candidates else None


def rank(problem: PlanningProblem, found: Diagnostics) -> Ranking:
    """All layouts in order; without candidates, and with the errors in `found`, when none can run."""
    layouts = valid_layouts(problem)
    ranking = Ranking(valid=len(layouts))
    for layout in layouts:
        for candidate in variants(problem, layout):
            (ranking.candidates if candidate.fits else ranking.too_large).append(candidate)
    if not ranking.candidates and not ranking.too_large:
        unsuitable = batch_error(problem, layouts, fits)
        found.extend([unsuitable] if unsuitable else refusal(problem))
        return ranking
    if not ranking.candidates:
        believed = believed_to_fit(problem, ranking.too_large, is_only=ranking.valid == 1, found=found)
        ranking.candidates = with_flags(problem.resolved, believed, found)
        return ranking
    supported = _supported(problem, ranking.candidates, found)
    ranking.candidates = with_flags(problem.resolved, supported, found)
    if not ranking.candidates:
        return ranking
    if problem.accelerator is None:
        ranking.candidates.sort(key=lambda candidate: candidate.simplicity)
        return ranking
    timed = _timed_all(problem, ranking.candidates)
    ranking.error = _preferred_first(problem, timed)
    ranking.candidates = timed
    return ranking


def _preferred_first(problem: PlanningProblem, timed: list[Candidate]) -> float:
    """Sorts candidates, the first the one to run; returns the error up to which sizes count as equally fast.

    The estimate is not more precise than the mean error of such runs: sizes within it of the fastest are
    equal. Those without full recomputation come first, then those of a published layout, then the simplest.
    Candidates of the same sizes share the error, because they differ in bubble, micro batch and recomputation
    only: among these it is `EQUAL_SPEED`.
    """
    assert problem.accelerator is not None, "without one nothing is timed"
    comfortable = [c for c in timed if c.is_comfortable] or timed
    fastest: dict[PublishedSizes, float] = {}
    for c in comfortable:
        fastest[c.sizes] = min(c.seconds, fastest.get(c.sizes, math.inf))
    error = max(EQUAL_SPEED, mean_error(spread(timed[0].workload, problem.accelerator)))
    longest = min(fastest.values()) * (1 + error)
    published = set(problem.resolved.published)

    def order(c: Candidate) -> tuple[bool, float, bool, bool, tuple[int, ...], float]:
        least = fastest.get(c.sizes, math.inf)
        full, unpublished = c.recompute == "full", c.sizes not in published
        if not c.is_comfortable or least > longest or c.seconds > least * (1 + EQUAL_SPEED):
            return not c.is_comfortable, c.seconds, full, unpublished, c.simplicity, c.seconds
        return False, 0.0, full, unpublished, c.simplicity, c.seconds

    timed.sort(key=order)
    return error


def _supported(problem: PlanningProblem, candidates: list[Candidate], found: Diagnostics) -> list[Candidate]:
    """The candidates with which Megatron accepts the recipe's flags; none, with the error in `found`."""
    args = problem.resolved.megatron_args
    if args.get("cuda-graph-impl") in ("local", "transformer_engine"):
        candidates = [c for c in candidates if c.recompute != "full"]
        if not candidates:
            found.error(
                "spec.megatronArgs.cuda-graph-impl",
                f"{args['cuda-graph-impl']} excludes full recomputation, without which no layout fits",
                "leave it out, or use more accelerators",
            )
    if candidates and args.get(EXPERT_OVERLAP):
        candidates = [c for c in candidates if overlaps_experts(c)]
        if not candidates:
            found.error(
                f"spec.megatronArgs.{EXPERT_OVERLAP}",
                "no layout that fits has EP above 1, virtual stages where there are stages, and no full "
                "recomputation",
                "leave it out, or use more accelerators",
            )
    return candidates


def _timed_all(problem: PlanningProblem, candidates: list[Candidate]) -> list[Candidate]:
    """All candidates with their times, except interleaved ones that cannot be competitive.

    Interleaving saves at most the bubble: where a layout without its bubble is still `NOT_COMPETITIVE` times
    slower than the best plain one, its interleavings do not matter.
    """
    plain = [with_time(problem, c) for c in candidates if c.dims.vp == 1]
    best = min((c.seconds for c in [c for c in plain if c.is_comfortable] or plain), default=math.inf)
    without_bubble: dict[tuple[object, ...], float] = {}
    for c in plain:
        assert c.expected is not None, "the candidate was timed"
        seconds = c.seconds * (1 - c.expected.bubble)
        without_bubble[_sizes(c)] = min(seconds, without_bubble.get(_sizes(c), math.inf))
    interleaved = [
        with_time(problem, c)
        for c in candidates
        if c.dims.vp > 1 and without_bubble.get(_sizes(c), 0.0) <= NOT_COMPETITIVE * best
    ]
    return plain + interleaved


def _sizes(candidate: Candidate) -> tuple[object, ...]:
    """What an interleaved candidate has in common with the plain one."""
    return replace(candidate.dims, vp=1), candidate.micro_batch
