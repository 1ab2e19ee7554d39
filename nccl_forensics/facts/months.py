"""Names of months in the logs of machines that do not speak English."""

from __future__ import annotations

_ENGLISH = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: Beginnings of months' names as C libraries abbreviate them beside English: German, French, Spanish, Italian, Portuguese, Dutch; and
#: numbered ones:
#: Chinese and Japanese, Korean. Longer ones first.
MONTHS: tuple[tuple[str, str], ...] = (
    *((name, "Jan") for name in ("janv", "ene", "gen")),
    *((name, "Feb") for name in ("févr", "fev")),
    *((name, "Mar") for name in ("mars", "mär", "mrt")),
    *((name, "Apr") for name in ("avr", "abr")),
    *((name, "May") for name in ("mai", "mei", "mag")),
    *((name, "Jun") for name in ("juin", "giu")),
    *((name, "Jul") for name in ("juil", "lug")),
    *((name, "Aug") for name in ("août", "ago")),
    *((name, "Sep") for name in ("sept", "set")),
    *((name, "Oct") for name in ("okt", "ott", "out")),
    *((name, "Dec") for name in ("déc", "dez", "dic")),
    *((f"{number}{sign}", name) for sign in "月월" for number, name in enumerate(_ENGLISH, 1)),
)
