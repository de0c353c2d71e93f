# make build   sets up .venv and generates, compiles and proves every kernel
# make test    sets up .venv with the test tools, then runs every check there is
# make clean   removes what these made, but not generated/, which is under version control
#
# Another Python, if python3 is older than 3.11: make build PYTHON=python3.12

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: build test clean

build: $(VENV)/installed
	$(BIN)/qgen build

test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find qgen tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps say which pyproject.toml the environment was made from; the code itself is installed in place.
$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'qgen needs Python 3.11 or newer; name one: make PYTHON=python3.12'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: pyproject.toml $(VENV)/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/installed-test: pyproject.toml $(VENV)/python
	$(INSTALL) --editable '.[test]'
	@touch $(VENV)/installed $@
