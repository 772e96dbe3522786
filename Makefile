# `make quickstart` lets a small agent learn from reflection; `make test` checks everything. Both work on a fresh machine.
PYTHON ?= python3
PIP_FLAGS ?=
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_FLAGS)
PYTEST = OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2

.PHONY: help install quickstart test test-fast lint format bench evidence-erl evidence-lp-reg evidence-tf-grpo base-model notes-model clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("kolb needs Python 3.11 or newer; say which: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[local,gym,plot]'
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) -e '.[dev]'
	@touch $@

install: .venv/.installed  ## kolb and what it needs, in .venv (PIP_FLAGS go to pip)

quickstart: .venv/.installed  ## a small agent learns from reflection, in about two minutes
	.venv/bin/kolb run recipes/quickstart.toml

test: .venv/.installed-dev  ## every test
	$(PYTEST)

test-fast: .venv/.installed-dev  ## every test that is not slow
	$(PYTEST) -m 'not slow and not network'

lint: .venv/.installed-dev  ## style, format, types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

format: .venv/.installed-dev  ## let ruff rewrite what it can
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: .venv/.installed-dev  ## the engine against plain transformers
	.venv/bin/python benchmarks/engine.py

evidence-erl: .venv/.installed  ## ERL against RLVR and its ablations: hours; goes on where it was stopped
	.venv/bin/python -m evidence.erl

evidence-lp-reg: .venv/.installed  ## Lp-Reg against the losses it is measured against: about an hour; goes on where it was stopped
	.venv/bin/python -m evidence.lp_reg

evidence-tf-grpo: .venv/.installed  ## Training-Free GRPO against its ablations: an hour, most of it for bases; goes on where it was stopped
	.venv/bin/python -m evidence.tf_grpo

base-model: .venv/.installed  ## build the embedded base model again, in under an hour
	rm -rf build/grids-*
	.venv/bin/python -m kolb.models.grids.start build/grids-start
	.venv/bin/kolb run recipes/base/grids.toml --out build/grids-run
	.venv/bin/kolb export build/grids-run build/grids-out
	cp build/grids-out/* kolb/models/grids/weights/

notes-model: .venv/.installed  ## build the embedded model that keeps notes again, from the base model, in a quarter of an hour
	rm -rf build/notes-*
	.venv/bin/python -m kolb.models.notes.start build/notes-start
	.venv/bin/kolb run recipes/base/notes.toml --out build/notes-run
	.venv/bin/kolb export build/notes-run build/notes-out
	cp build/notes-out/* kolb/models/notes/weights/

clean:  ## removes .venv and caches, keeps runs/
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
