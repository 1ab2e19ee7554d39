"""The commands, one module each: the module holds a click command of the command's name (dashes as underscores).

They are imported when they are called, so that `--help` of one does not pay for all.
"""

from __future__ import annotations

#: Command -> its one line in `--help`, in the order printed.
COMMANDS: dict[str, str] = {
    "analyze": "Analyse folders, archives and files: the verdict, and with -o the postmortem.",
    "check": "The gate for archived runs: exit code 1 for faults and regressions.",
    "compare": "Two runs side by side: what changed, ordered by what explains it.",
    "sql": "A query over the tables of evidence, or over a folder of saved tables.",
    "serve": "The upload page: drop a tarball in the browser, read and keep the postmortems.",
    "simulate": "Write the evidence of a made-up incident, with its truth.",
    "collect": "Print the script that gathers the evidence on a node.",
    "formats": "What can be read.",
    "rules": "What is checked.",
    "rule": "One rule's page, with its inputs and thresholds.",
    "tables": "What tables there are and their columns.",
    "plugins": "What extensions are installed, and why one is not used.",
}
#: Commands whose module has another name.
MODULES: dict[str, str] = {"formats": "catalog", "rules": "catalog", "rule": "catalog", "tables": "catalog", "plugins": "catalog"}

#: Command -> lines that show how it is used, printed below its options.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "analyze": (
        "nccl-forensics analyze incident.tar.gz -o out",
        "nccl-forensics analyze node*.tar.gz slurm-4711.out --html postmortem.html",
        "nccl-forensics analyze /var/log/train --json - --quiet | jq .verdict",
        "nccl-forensics analyze --watch /shared/incident -o out",
    ),
    "check": (
        "nccl-forensics check run.tar.gz",
        "nccl-forensics check run.tar.gz --baseline good.json --junit junit.xml --sarif nccl.sarif",
        "nccl-forensics check run.tar.gz --fail-on warning --require nccl-log,flight-recorder",
    ),
    "compare": (
        "nccl-forensics compare last-week.tar.gz this-week.tar.gz",
        "nccl-forensics compare good/report.json bad.tar.gz --html comparison.html",
    ),
    "sql": (
        "nccl-forensics sql incident.tar.gz 'SELECT rank, nranks, bus_id FROM nccl_comms ORDER BY rank'",
        "nccl-forensics sql out 'SELECT path, gaps FROM sources WHERE gaps > 0' --format csv",
    ),
    "collect": (
        "nccl-forensics collect -o collect.sh && sh collect.sh -f /var/log/train",
        "nccl-forensics collect --launcher srun",
    ),
    "simulate": (
        "nccl-forensics simulate collective-skipped -o made-up --ranks 16 --seed 1",
        "nccl-forensics simulate --list",
    ),
    "serve": ("nccl-forensics serve --port 8642", "nccl-forensics serve --host 0.0.0.0 --token-file token --data /srv/incidents"),
    "formats": ("nccl-forensics formats",),
    "rules": ("nccl-forensics rules",),
    "rule": ("nccl-forensics rule collective-skipped", "nccl-forensics rule CO01"),
    "tables": ("nccl-forensics tables",),
    "plugins": ("nccl-forensics plugins",),
}
