# make demo    set up, then local / federated / central training on an embedded graph
# make test    set up, then the whole test suite
# make lint    set up, then ruff: rules and layout
# make types   set up, then mypy
# make docs    set up, then the docs site in site/; a warning is an error
# make test-newest   the suite with the newest lightning of the index, unless that is the pinned one; a certain one:
#                    make test-newest LIGHTNING=lightning==2.6.0
# make wheel   build wheel and sdist, install each in an environment of its own and start it there
# make coverage      the whole test suite, and which lines it does not run (htmlcov/)
# make constraints   ask pip whether constraints.txt can be solved with every extra
# make clean   remove the environment

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -c constraints.txt --disable-pip-version-check

# A variable of its own: `call` below would take the commas for its own.
EXTRAS := docs,flower,forest,metis,parquet,search,test
# Asked for apart from the others: chemprop's featuriser cuik_molmaker_pin is built for one rdkit, and for none of the pinned one.
CHEMPROP_RDKIT := 2026.3.6

# One thread a process: the same sums everywhere, and clients in parallel do not fight over cores.
export OMP_NUM_THREADS ?= 1

# Quiet if all goes well; once more, with everything pip says, if not.
quietly = $(1) -qq $(2) || $(1) $(2)

.PHONY: demo test test-newest lint types docs wheel coverage constraints clean

demo: $(VENV)/.installed
	@$(BIN)/python examples/demo.py

test: $(VENV)/.installed-test
	@$(BIN)/python -m pytest -m "not slow"

# Beside the environment, in a folder that comes first on the path: nothing else changes, and nothing has to be undone.
LIGHTNING ?= lightning
test-newest: $(VENV)/.installed-test
	@rm -rf build/newest
	@$(call quietly,$(BIN)/python -m pip install --disable-pip-version-check,--no-deps --target build/newest "$(LIGHTNING)")
	@pinned=$$(sed -n 's/^lightning==//p' constraints.txt); \
	newest=$$(ls build/newest | sed -n 's/^lightning-\(.*\)\.dist-info$$/\1/p'); \
	if [ "$$newest" = "$$pinned" ]; then echo "lightning $$newest is the pinned one: it is tested already"; else \
	  echo "lightning $$newest (pinned: $$pinned)"; \
	  PYTHONPATH=$(CURDIR)/build/newest $(BIN)/python -m pytest -m "not slow" tests/fl_lightning tests/lit_models tests/whole; fi

lint: $(VENV)/.installed-test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	@$(BIN)/mypy

docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/.installed-test
	@rm -rf dist build/installed
	@$(call quietly,$(PIP),build)
	@$(BIN)/python -m build --outdir dist . > build.log || { cat build.log; exit 1; }
	@rm build.log
	@$(PYTHON) -m venv build/installed
	@build/installed/bin/python -m pip install -qq -c constraints.txt --disable-pip-version-check torch==2.13.0
	@for file in dist/*.whl dist/*.tar.gz; do \
	  build/installed/bin/python -m pip install -qq -c constraints.txt --disable-pip-version-check --force-reinstall --no-deps $$file && \
	  build/installed/bin/python -m pip install -qq -c constraints.txt --disable-pip-version-check $$file && \
	  (cd build/installed && bin/fl-lightning inspect --config configs/demo.yaml > inspected.txt && grep -q num_clients inspected.txt) && \
	  echo "$$file: installed, and inspects configs/demo.yaml" || exit 1; done

coverage: $(VENV)/.installed-test
	@$(call quietly,$(PIP),pytest-cov)
	@$(BIN)/python -m pytest -m "not slow" --cov=fl_lightning --cov=lit_models --cov=datamodules --cov-report=term:skip-covered --cov-report=html

constraints: $(VENV)/.installed-test
	@$(call quietly,$(PIP),--dry-run -e ".[$(EXTRAS)]")
	@mkdir -p build && sed 's/^rdkit==.*/rdkit==$(CHEMPROP_RDKIT)/' constraints.txt > build/constraints-chemprop.txt
	@$(call quietly,$(BIN)/python -m pip install --disable-pip-version-check,-c build/constraints-chemprop.txt --dry-run -e ".[chemprop]")

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
	rm -rf $(VENV) build dist site htmlcov .coverage *.egg-info .pytest_cache .ruff_cache .hypothesis
