# make smoke: set-up, and a real distillation on this machine's CPU · make test: set-up and all checks and tests
PY := .venv/bin/python

.PHONY: smoke test lint
smoke:
	@bash tools/setup.sh cpu
	@$(PY) -m opd_conf.cpu.sums
	@$(PY) -m opd_conf experiment=smoke

test: lint
	@$(PY) -m pytest

lint:
	@bash tools/setup.sh cpu,veomni,dev
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
