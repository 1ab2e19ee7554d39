"""The script that gathers evidence on a node: POSIX sh, nothing else needed there."""

from __future__ import annotations

from importlib.resources import files

#: Launcher -> what it is for, and the lines that run the script on every node of a job.
LAUNCHERS: dict[str, tuple[str, str]] = {
    "srun": (
        "Slurm, from anywhere the job's shared folder can be seen",
        'srun --jobid "$JOB" --overlap --nodes "$(squeue -h -j "$JOB" -o %D)" --ntasks-per-node 1 sh collect.sh -o incident',
    ),
    "kubectl": (
        "Kubernetes, with the label of the job's pods",
        'for pod in $(kubectl get pods -l "$LABEL" -o name); do '
        'kubectl exec -i "$pod" -- sh -s -- -c <collect.sh >"incident-${pod##*/}.tar.gz" & done; wait',
    ),
    "ssh": (
        "hosts listed one per line",
        'while read -r node; do ssh -o BatchMode=yes "$node" sh -s -- -c <collect.sh >"incident-$node.tar.gz" & done <hosts.txt; wait',
    ),
}


def script() -> str:
    """The text of the script, with the launcher lines in its head."""
    text = files(__name__).joinpath("gather.sh").read_text(encoding="utf-8")
    lines = "\n".join(f"#   {name} ({what}):\n#     {line}" for name, (what, line) in LAUNCHERS.items())
    return text.replace("@LAUNCHERS@", lines)
