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
}
#: Commands whose module has another name.
MODULES: dict[str, str] = {"formats": "catalog", "rules": "catalog", "rule": "catalog", "tables": "catalog"}
