# make demo: set up and analyse a bundled incident.   make test: set up and run all checks and tests.
# make hang: a real hang of a PyTorch job on this machine, diagnosed. FAULT=… chooses another fault, LAB='--list' shows them.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
RUNTIME = $(VENV)/.runtime

.PHONY: site clean-machine gallery demo test lint types pytest docs docs-check score robustness lock bench hang clean

# What a user needs, and on top of it what a developer needs.
$(RUNTIME): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $(RUNTIME)

$(STAMP): $(RUNTIME)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(RUNTIME)
	$(BIN)/nccl-forensics analyze fixtures/incidents/skipped-collective-8r/evidence --output out/demo

test: lint types docs-check pytest robustness

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

pytest: $(STAMP)
	$(BIN)/python -m pytest -n 2

# Every case with a truth, against the floors in tests/score_floor.json.
score: $(STAMP)
	$(BIN)/python -m tests.score
	$(BIN)/python -m tests.robustness

# The verdicts when evidence is missing, renamed, cut or mixed, against the floors in tests/robustness_floor.json.
robustness: $(STAMP)
	$(BIN)/python -m tests.robustness

docs: $(STAMP)
	$(BIN)/python -m tests.generate_docs

docs-check: $(STAMP)
	$(BIN)/python -m tests.generate_docs --check

# The documentation as a static site; a warning is an error.
site: $(STAMP)
	$(BIN)/python -m tests.site out/site

# The wheel in a fresh environment outside the checkout, the start page followed literally; size, import time and licences.
clean-machine: $(STAMP)
	$(BIN)/python -m tests.clean_machine

# A postmortem of each bundled incident with an index page, and the screenshots of the README.
gallery: $(STAMP)
	$(BIN)/python -m tests.gallery out/gallery --screenshots docs/screenshots

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks.bench_grammar

# Installs PyTorch into .venv-lab if no interpreter here has it, and says its size first.
FAULT ?= skipped-collective
LAB ?=
hang: $(STAMP)
	$(BIN)/python -m nccl_forensics.lab $(FAULT) --install --output out/hang/$(shell date +%H%M%S) $(LAB)

# What is tested today is what a fresh install gets tomorrow.
lock: $(STAMP)
	$(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check > constraints.txt

clean:
	rm -rf $(VENV) out build dist
