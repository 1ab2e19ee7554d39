"""Errors that carry the exit code of the contract."""

from __future__ import annotations


class ForensicsError(Exception):
    """Base of all errors that a user can cause or mend. Anything else that is raised is a bug."""

    exit_code = 70  #: a defect, which is what an error of no kind below is


class UsageError(ForensicsError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class UnusableEvidence(ForensicsError):
    """Nothing in what was handed in can be read at all."""

    exit_code = 3


class LimitReached(ForensicsError):
    """A size, count, depth or time bound was met."""

    exit_code = 4


class OutputError(ForensicsError):
    """The output cannot be written."""

    exit_code = 5
