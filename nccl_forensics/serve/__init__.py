"""`serve`: one address for a team to drop evidence at, watch it being read, read the postmortem and find it again.

The web process never analyses: each incident is read by a child process (``worker``) that goes through the engine that every command uses.
Truth lies in two places only: the files below the data folder, and one SQLite file beside them; everything else can be killed at any
moment.
"""
