"""Which hosts a verdict leaves out of the next start."""

from __future__ import annotations

from nccl_forensics.conclusions.exclusions import exclusions
from nccl_forensics.model import Action, Culprit, Finding


def test_a_host_whose_gpu_is_to_be_reset_is_left_out_of_the_next_start() -> None:
    fault = Finding("a GPU failed", cause="gpu-fault", actions=(Action("reset_gpu", hosts=("node2",)), Action("restart_job")))
    [action] = exclusions(fault)
    assert (action.action, action.hosts, action.confidence) == ("exclude-node", ("node2",), "high")
    assert action.command == "sbatch --exclude=node2 JOB.sh  # Kubernetes: kubectl cordon node2"


def test_a_node_that_failed_is_left_out_whatever_is_to_be_done() -> None:
    [action] = exclusions(
        Finding("a node failed", cause="node-failed", culprits=(Culprit(host="node7"),), actions=(Action("restart_job"),))
    )
    assert action.hosts == ("node7",)


def test_a_fault_of_the_program_excludes_nobody() -> None:
    assert not exclusions(Finding("a bug", cause="software-crash", actions=(Action("fix_application", hosts=("node2",)),)))
