# The two commands are `make reproduce` and `make test`; the rest serves them.
PYTHON ?= python3
CORES ?= all
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# npm trusts the certificates that the system trusts, as pip does.
export NODE_USE_SYSTEM_CA ?= 1

.DEFAULT_GOAL := help
.PHONY: help reproduce test lint format bench ledger dashboard lock clean

help:  ## List the commands.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/ready: requirements.txt requirements-assets.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-assets.txt
	touch $@

reproduce: $(VENV)/ready  ## Run all papers at the scale of params.yaml (SCALE=smoke for a quick look).
	snakemake --cores $(CORES) $(if $(SCALE),--config scale=$(SCALE))

test: $(VENV)/ready lint  ## Lint, then pytest, which runs every paper at smoke scale.
	pytest

lint: $(VENV)/ready
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile workflow/rules
	python workflow/lint.py

format: $(VENV)/ready  ## Format the code.
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow/rules

bench: $(VENV)/ready  ## Our cores beside the libraries a user would pick.
	snakemake --cores 1 bench

ledger: $(VENV)/ready  ## Write docs/ledger.md and README's table from the last run.
	python -m scripts.pipeline.ledger_docs --scale $(or $(SCALE),laptop)

estimate: $(VENV)/ready  ## Write what the paper scale asks of a cluster into README.md.
	python -m scripts.pipeline.estimate --write

dashboard: $(VENV)/ready  ## Open the MLflow dashboard on http://127.0.0.1:5000.
	mlflow ui --host 127.0.0.1 --backend-store-uri sqlite:///results/mlflow.db

lock:  ## Write requirements.txt anew from requirements.in.
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet -r requirements.in
	{ echo '# The full lock, written by `make lock` from requirements.in. Do not edit.'; \
	  .venv-lock/bin/python -m pip freeze | sed -E 's/\+cpu//; s/^(triton|nvidia-[^=]*)(==.*)$$/\1\2; platform_system == "Linux"/'; } > requirements.txt
	rm -rf .venv-lock
