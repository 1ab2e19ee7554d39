"""What holds for every test: nothing is written to, or taken from, the cache of whoever runs them, and no test is timed."""

from __future__ import annotations

import os

from hypothesis import settings

# A busy machine makes every example slow, and no example wrong.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

os.environ["NCCL_FORENSICS_NO_CACHE"] = "1"
