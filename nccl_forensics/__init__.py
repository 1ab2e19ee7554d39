"""Offline analyzer for hung, crashed and slow distributed training."""

__version__ = "0.1.0"
