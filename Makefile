# make env    create the environment in .venv (nothing if it is there and current)
# make test   format, types, tests        make demo   all of it on embedded digits
# make bench  the benchmarks, one JSON line each
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: env test demo bench lint

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest

demo: env
	$(BIN)/superformer demo

bench: env
	$(BIN)/python benchmarks/run.py
