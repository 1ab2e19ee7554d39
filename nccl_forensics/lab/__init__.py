"""The lab: real multi-process PyTorch jobs with a chosen fault, their evidence gathered as a user would, and analysed at once.

``python -m nccl_forensics.lab`` (or ``make hang``). Nothing here imports PyTorch but the jobs, which run in processes of their own.
"""
