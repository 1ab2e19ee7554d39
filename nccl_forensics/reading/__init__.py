"""From what was handed in to frames: unpacking, the prefixes of launchers, one source at a time, many at once, in processes with limits."""
