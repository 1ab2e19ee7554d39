# make demo: set up and analyse a bundled incident.   make test: set up and run all checks and tests.
# make hang: a real hang of a PyTorch job on this machine, diagnosed. FAULT=… chooses another fault, LAB='--list' shows them.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
RUNTIME = $(VENV)/.runtime
TOOLS = .venv-tools

.PHONY: site clean-machine image gallery demo test lint types pytest docs docs-check score robustness lock sbom advisories bench hang clean

# What a user needs, and on top of it what a developer needs.
# Where `make lock` wrote locks/, nothing is installed but files with the hashes in them.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKS = $(wildcard locks/runtime.txt locks/dev.txt)
$(RUNTIME): pyproject.toml constraints.txt $(LOCKS)
	$(PYTHON) -m venv $(VENV)
ifeq ($(LOCKS),)
	$(PIP) --constraint constraints.txt --editable .
else
	$(PIP) --require-hashes --requirement locks/runtime.txt
	$(PIP) --no-deps --editable .
	$(BIN)/python -m pip check
endif
	touch $(RUNTIME)

$(STAMP): $(RUNTIME)
ifeq ($(LOCKS),)
	$(PIP) --constraint constraints.txt --editable '.[dev]'
else
	$(PIP) --require-hashes --requirement locks/dev.txt
	$(BIN)/python -m pip check
endif
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

# The container's image where no registry of images can be reached: a base of Debian's packages alone, the rest from the package index.
# Needs buildah and mmdebstrap. IMAGE_OPTIONS is for buildah: volumes with pip's configuration, another isolation, EXTRAS.
IMAGE_OPTIONS =
image:
	mkdir -p out/image
	mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates bookworm out/image/base.tar
	printf 'FROM scratch\nADD base.tar /\n' > out/image/Containerfile
	buildah bud --tag nccl-forensics-base --file out/image/Containerfile out/image
	rm out/image/base.tar
	buildah bud $(IMAGE_OPTIONS) --build-arg BASE=localhost/nccl-forensics-base --tag nccl-forensics --file Containerfile .

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

# What is tested today is what a fresh install gets tomorrow: versions for people, and files with their hashes for `make`.
COMPILE = $(TOOLS)/bin/uv pip compile pyproject.toml --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
	--constraint constraints.txt
lock: $(STAMP) $(TOOLS)/.installed
	$(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check > constraints.txt
	mkdir -p locks
	$(COMPILE) --output-file locks/runtime.txt
	$(COMPILE) --extra dev --output-file locks/dev.txt

# Tools of a release stand apart from what is tested.
$(TOOLS)/.installed:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv cyclonedx-bom pip-audit
	touch $@

# What a release consists of (CycloneDX).
sbom: $(TOOLS)/.installed
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements $(firstword $(LOCKS) constraints.txt) --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.cdx.json

# Known vulnerabilities of the pinned dependencies: reported, and nothing fails, least of all where the service cannot be reached.
advisories:
	-@$(MAKE) --no-print-directory $(TOOLS)/.installed && $(TOOLS)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip \
		--progress-spinner off --timeout 20 || echo "advisories: not asked, or something was found (see above); nothing fails by it"

clean:
	rm -rf $(VENV) $(TOOLS) out build dist
