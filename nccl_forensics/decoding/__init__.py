"""Containers and encodings of strangers: archives, pickles, JSON of traces, XML, YAML, SQLite and journals, read without running what they
hold."""
