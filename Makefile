# Every target is a few lines over a Python entry point. Variables: make test PYTHON=python3.12 TORCH=cpu
PYTHON ?=
TORCH ?=
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PORT ?= 8000
export PYTHON TORCH TORCH_CPU_INDEX

ANY_PYTHON := $(shell for p in $(PYTHON) python3 python3.13 python3.12 python3.11; do command -v $$p && break; done)
SETUP = $(if $(ANY_PYTHON),$(ANY_PYTHON) tools/bootstrap.py,$(error no Python found: install Python 3.11, 3.12 or 3.13))
BIN = .venv/bin

.PHONY: help book serve-book test test-all lab chat work grade execute gpu lint clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

book: ## build the whole book, strictly, into _build/html
	@$(SETUP) book
	@$(BIN)/python tools/build_book.py

serve-book: ## build the book and serve it on http://127.0.0.1:8000 (PORT=...)
	@$(SETUP) book
	@$(BIN)/python tools/serve_book.py "$(PORT)"

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

lab: ## JupyterLab on notebooks and exercises
	@$(SETUP) lab
	@$(BIN)/jupyter lab --notebook-dir=.

chat: ## talk to the real model through our engine
	@$(SETUP) engine
	@$(BIN)/mini-vllm chat $(ARGS)

work: ## copy the exercises to work/, where you solve them (overwrites nothing)
	@mkdir -p work
	@for from in exercises/*.ipynb; do to="work/$${from##*/}"; \
	  if [ -e "$$to" ]; then echo "$$to: there already, left as it is"; \
	  else cp "$$from" "$$to" && echo "$$to: copied, yours to write in"; fi; done

GRADED = $(or $(ARGS),$(if $(wildcard work/*.ipynb),work))
grade: ## grade what lies in work/, or: make grade ARGS="path/to/notebook.ipynb"
	$(if $(GRADED),,@echo 'nothing in work/ yet: "make work" copies the exercises there;' \
	  'or name a notebook: make grade ARGS="path/to/notebook.ipynb"'; exit 2)
	@$(SETUP) book
	@$(BIN)/mini-vllm grade $(GRADED)

execute: ## run the notebooks whose code changed, then regenerate the exercises
	@$(SETUP) test
	@$(BIN)/python tools/execute.py --changed
	@$(BIN)/python tools/make_exercises.py

# Beside a GPU the machine's own Python often has torch already, and there may be no network to install another.
HAS_TORCH = import importlib.util as u; raise SystemExit(not all(map(u.find_spec, ("torch", "triton"))))
TORCH_PYTHON = $(shell for p in $(BIN)/python $(PYTHON) python3 python; do \
  $$p -c '$(HAS_TORCH)' 2>/dev/null && echo $$p && break; done)
gpu: ## measure kernels and engine on a GPU (9 min); ARGS="--quick", "--smoke", "--help"
	@$(if $(TORCH_PYTHON),,$(SETUP) engine)
	@$(or $(TORCH_PYTHON),$(BIN)/python) benchmarks/gpu.py $(ARGS)

clean: ## remove what builds left (not .venv, not the model)
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache .hypothesis
