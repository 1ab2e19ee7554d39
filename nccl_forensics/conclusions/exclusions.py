"""Which hosts to leave out of the next start of the job."""

from __future__ import annotations

from shlex import join, quote

from nccl_forensics.model import Action, Finding, blamed_by

#: What is done to a machine that no job should get before it is done.
_OUT_OF_SERVICE = frozenset({"reset_gpu", "drain_and_reset", "reboot_node", "replace_hw", "check_cable_or_optic", "check_power_or_cooling"})


def exclusions(finding: Finding) -> tuple[Action, ...]:
    """The action for the hosts that the finding's own actions take out of service, and for nodes that failed; for verdicts of high confidence
    only, as the contract says."""
    hosts = {host for action in finding.actions if action.action in _OUT_OF_SERVICE for host in action.hosts}
    if finding.cause == "node-failed":
        hosts |= {culprit.host for culprit in blamed_by(finding) if culprit.host}
    names = tuple(sorted(hosts))
    command = f"sbatch --exclude={quote(','.join(names))} JOB.sh  # Kubernetes: kubectl cordon {join(names)}"
    return (Action("exclude-node", hosts=names, command=command, confidence="high"),) if names else ()
