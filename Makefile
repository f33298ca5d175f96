# What a newcomer needs: `make demo`, `make test`. No root; Python 3.11 to 3.13 and make are enough.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# torch comes first, alone and exact: all else has a range that it satisfies, so nothing replaces it.
TORCH := torch==2.13.0
# For another build of it, as in: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX :=
FRESH :=
NEEDED := import sys, venv, ensurepip; assert (3, 11) <= sys.version_info < (3, 14)

.PHONY: help setup demo test lint smoke clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(READY) ## create .venv (minutes, once; again when pyproject.toml changes)

$(READY): pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  for python in python3.11 python3.12 python3.13 python3; do \
	    $$python -c '$(NEEDED)' 2>/dev/null && break; python=; \
	  done; \
	  test -n "$$python" || { echo "rstar2 needs Python 3.11 (3.12 and 3.13 work too) with venv:"; \
	    echo "  Debian, Ubuntu: apt install python3.11 python3.11-venv"; \
	    echo "  without root: pyenv install 3.11"; exit 1; }; \
	  echo "creating $(VENV) with $$python"; $$python -m venv $(VENV); }
	@echo "installing $(TORCH), then the rest (minutes, once)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: setup ## the whole recipe on this machine, about ten minutes; FRESH=1 starts anew
	@if [ -n "$(FRESH)" ] && [ -e runs/demo ]; then \
	  if $(BIN)/rstar2 owner demo; then echo "stop that process first"; exit 1; fi; \
	  aside="runs-aside/$$(date +%Y%m%d-%H%M%S)"; mkdir -p "$$aside"; mv runs/demo "$$aside/"; \
	  echo "the earlier demo is kept: --storage $$aside"; fi
	@$(BIN)/rstar2 run laptop --run demo || { code=$$?; \
	  test $$code -ne 2 || echo "to set the old demo aside and start anew: make demo FRESH=1"; exit $$code; }

test: setup ## all tests
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: setup ## ruff, types, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

smoke: setup ## the whole recipe in under a minute: mechanics, not learning
	@storage=$$(mktemp -d) && $(BIN)/rstar2 run smoke --set storage="$$storage" && rm -r "$$storage"

clean: ## stop the services, remove the environment and caches; runs/ stays
	@test ! -x $(BIN)/rstar2 || $(BIN)/rstar2 down
	@rm -rf $(VENV) .rstar2 dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
