"""What holds for every test: nothing is written to, or taken from, the cache of whoever runs them."""

from __future__ import annotations

import os

os.environ["NCCL_FORENSICS_NO_CACHE"] = "1"
