"""Stacks of processes: their frames, where they stand, and what many of them share."""
