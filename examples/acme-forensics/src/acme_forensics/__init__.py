"""Acme's own checks in nccl-forensics."""
