"""Facts of the field as data: what codes, settings, counters and platforms mean, each with its source. No frames, no files."""
