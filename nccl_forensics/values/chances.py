"""How likely something is by chance alone."""

from __future__ import annotations

from math import exp, lgamma, log

#: Trials up to which the terms of a tail are summed.
_SUMMED = 2000


def tail(trials: int, least: int, share: float) -> float:
    """Chance of ``least`` or more of so many independent ``trials`` that come out with the chance ``share`` each, between 0 and 1 without
    these; of many trials a bound above it (Chernoff): sums of thousands of terms say no more."""
    if least <= 0:
        return 1.0
    if least > trials:
        return 0.0
    if trials > _SUMMED:
        seen = least / trials
        if seen <= share:
            return 1.0
        divergence = seen * log(seen / share) + ((1 - seen) * log((1 - seen) / (1 - share)) if seen < 1 else 0.0)
        return exp(-trials * divergence)
    whole, one, other = lgamma(trials + 1), log(share), log(1 - share)
    terms = (exp(whole - lgamma(n + 1) - lgamma(trials - n + 1) + n * one + (trials - n) * other) for n in range(least, trials + 1))
    return min(1.0, sum(terms))
