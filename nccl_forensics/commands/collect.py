"""`collect`: prints the script that gathers evidence on a node."""

from __future__ import annotations

import click

from nccl_forensics.commands.output import write


@click.command()
@click.option("-o", "--output", metavar="F", default="-", help="Write the script to F instead of standard output.")
@click.option(
    "--launcher",
    type=click.Choice(["srun", "kubectl", "ssh"]),
    help="Print the line that runs the script, saved as collect.sh, on every node of a job.",
)
def collect(output: str, launcher: str | None) -> None:
    """Print a POSIX sh script to run on each node during the hang; it packs incident-<host>-<time>.tar.gz for `analyze`.

    It needs nothing installed on the node, limits the time of every step, ends no process, and masks secrets in environments.
    """
    from nccl_forensics.collect import LAUNCHERS, script

    text = LAUNCHERS[launcher][1] + "\n" if launcher else script()
    write(output, text.encode())
