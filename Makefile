# Every target is a few lines over a Python entry point. Variables: make test PYTHON=python3.12 TORCH=cpu
PYTHON ?=
TORCH ?=
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PORT ?= 8000
export PYTHON TORCH TORCH_CPU_INDEX

ANY_PYTHON := $(shell for p in $(PYTHON) python3 python3.13 python3.12 python3.11; do command -v $$p && break; done)
SETUP = $(if $(ANY_PYTHON),$(ANY_PYTHON) tools/bootstrap.py,$(error no Python found: install Python 3.11, 3.12 or 3.13))
BIN = .venv/bin

.PHONY: help book serve-book test test-all lab chat grade execute lint clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

book: ## build the whole book, strictly, into _build/html
	@$(SETUP) book
	@$(BIN)/python tools/build_book.py

serve-book: book ## build the book and open it on http://127.0.0.1:8000 (PORT=...)
	@echo "the book is at http://127.0.0.1:$(PORT)/ (Ctrl-C ends it)"
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

test: ## everything that must hold: lint, types, tests, notebooks, book, browser
	@$(SETUP) test
	@$(BIN)/mini-vllm fetch smollm2-135m
	@$(BIN)/python tools/check.py

test-all: ## make test with the slow matrix (weekly)
	@$(SETUP) test
	@$(BIN)/mini-vllm fetch smollm2-135m
	@$(BIN)/python tools/check.py --all

lint: ## style, types and dead code only
	@$(SETUP) test
	@$(BIN)/python tools/check.py lint types dead-code

lab: ## JupyterLab on the exercises
	@$(SETUP) lab
	@$(BIN)/jupyter lab --notebook-dir=.

chat: ## talk to the real model through our engine
	@$(SETUP) engine
	@$(BIN)/mini-vllm chat $(ARGS)

grade: ## grade your notebooks: make grade ARGS="exercises/01-static-batching.ipynb"
	@$(SETUP) lab
	@$(BIN)/mini-vllm grade $(ARGS)

execute: ## run the notebooks whose code changed, then regenerate the exercises
	@$(SETUP) test
	@$(BIN)/python tools/execute.py --changed
	@$(BIN)/python tools/make_exercises.py

clean: ## remove what builds left (not .venv, not the model)
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache .hypothesis
