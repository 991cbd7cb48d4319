# make demo    set up, then local / federated / central training on an embedded graph
# make test    set up, then the whole test suite
# make lint    set up, then ruff
# make docs    set up, then the docs site in site/; a warning is an error
# make constraints   ask pip whether constraints.txt can be solved with every extra
# make clean   remove the environment

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -c constraints.txt --disable-pip-version-check

# One thread a process: the same sums everywhere, and clients in parallel do not fight over cores.
export OMP_NUM_THREADS ?= 1

# Quiet if all goes well; once more, with everything pip says, if not.
quietly = $(1) -qq $(2) || $(1) $(2)

.PHONY: demo test lint docs constraints clean

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py

test: $(VENV)/.installed-test
	@$(BIN)/python -m pytest -m "not slow"

lint: $(VENV)/.installed-test
	@$(BIN)/ruff check .

docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

constraints: $(VENV)/.installed-test
	@$(call quietly,$(PIP),--dry-run -e ".[docs,flower,metis,parquet,search,test]")

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV) (once, some minutes)"
	@$(call quietly,$(PIP),torch==2.13.0)
	@$(call quietly,$(PIP),-e .)
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@$(call quietly,$(PIP),-e ".[test]")
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(call quietly,$(PIP),-e ".[docs]")
	@touch $@

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .ruff_cache .hypothesis
