"""Thresholds that several rules have: what each means, and what it is unless it is set."""

from __future__ import annotations

from typing import Annotated

#: What a host tells against the times of the job: an hour that bears no zone may be off by the widest difference of zones, and what bears
#: one counts as of the job's time a little before and after it.
AroundHours = Annotated[float, "hours around the job within which what a host tells is judged: the widest difference of zones"]
NearSeconds = Annotated[float, "seconds around the job within which what a host tells counts as of its time"]
ZONES_H, BESIDE_S = 14.0, 900.0
