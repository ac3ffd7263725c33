# Works with make, Python 3.11 to 3.13 and a package index; `make` alone says what there is.

BIN := .venv/bin
PYTHON := python3
SHELL := /bin/bash
unexport PYTHONDONTWRITEBYTECODE  # or each of a test run's processes compiles the course by itself

help:
	@echo 'make lab        set up what is missing and open JupyterLab on the first lesson; PORT=8890 for a port'
	@echo 'make test       set up what is missing and test the library and every notebook'
	@echo 'make book       set up what is missing and write the course as a web site, build/book'
	@echo
	@echo 'For maintainers:'
	@echo 'make check      what make test begins with, and the quick unit tests: a minute, as you work'
	@echo 'make mutants    change the library a little, often, and count what its tests do not notice: hours;'
	@echo '                ROOMS="compare tpu" for some rooms'
	@echo 'make exercises  write exercises/ from solutions/'
	@echo 'make notebooks  execute lessons and solutions and store their outputs'
	@echo 'make lock       requirements.lock from pyproject.toml; UPGRADE=--upgrade for newer versions'
	@echo 'make lock-colab FREEZE=pip-freeze.txt FREEZE_TPU=pip-freeze.tpu.txt'
	@echo "                the two Colab locks, from the lists in Colab's public repository backend-info"
	@echo 'make clean      remove the environments and caches; your notebooks and progress stay'

lab: setup
	@$(BIN)/course lab $(PORT:%=--port %)

# A file's tests stay together: a notebook's cells need their kernel, in order. tests/conftest.py puts the longest first.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 6 --dist loadfile --no-loadscope-reorder

check: lint
	$(PYTEST) -m 'not heavy and not slow' tests

test: lint
	$(PYTEST)

lint: setup
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet

mutants: setup
	$(BIN)/uv pip install --quiet --editable '.[mutation]'
	$(BIN)/python tests/mutants.py $(ROOMS)

# No cell is executed: pages show the stored outputs.
book: setup
	@$(BIN)/course book

exercises: setup
	$(BIN)/course new-exercises

notebooks: setup
	$(BIN)/course run-notebooks

setup:
	@$(PYTHON) course_lib/bootstrap.py

clean:
	rm -rf .venv* build dist .pytest_cache
	find . -name __pycache__ -prune -exec rm -r {} +

# A lock holds names, versions and markers, and no address.
COMPILE := $(BIN)/uv pip compile --quiet --no-header --no-annotate
EXTRAS := cpu jax lab test lint book browser legacy
COLAB_EXTRAS := cpu jax notebook test legacy
COLAB_TPU_EXTRAS := jax notebook test
COLAB := --python-version 3.13 --python-platform x86_64-manylinux_2_31

# tf_keras asks for `tensorflow`, which would bring the CUDA build in beside tensorflow-cpu.
lock: setup
	$(COMPILE) $(UPGRADE) --universal --fork-strategy fewest --python-version 3.11 \
	  --override <(echo 'tensorflow ; platform_machine != "x86_64" or sys_platform != "linux"') \
	  pyproject.toml $(EXTRAS:%=--extra %) --output-file requirements.lock

# Colab's CPU and GPU runtimes have the full `tensorflow`, and no libtpu; its TPU runtime has
# libtpu, and no TensorFlow. Lines with " @ " name files on Colab's own machines.
lock-colab: setup
	@test -f '$(FREEZE)' -a -f '$(FREEZE_TPU)' || { echo 'FREEZE and FREEZE_TPU must name two files; see make help'; exit 2; }
	$(COMPILE) $(COLAB) --constraint <(grep -v ' @ ' $(FREEZE)) \
	  --override <(printf '%s ; sys_platform == "never"\n' tensorflow-cpu libtpu) \
	  pyproject.toml <(echo tensorflow) $(COLAB_EXTRAS:%=--extra %) --output-file requirements-colab.lock
	$(COMPILE) $(COLAB) --constraint <(grep -v ' @ ' $(FREEZE_TPU)) --override <(echo libtpu==0.0.21.1) \
	  pyproject.toml $(COLAB_TPU_EXTRAS:%=--extra %) --output-file requirements-colab-tpu.lock
	FREEZE_TPU='$(abspath $(FREEZE_TPU))' $(BIN)/python -m pytest -s tests/test_colab.py -k whole_list

.PHONY: help lab test check lint mutants book exercises notebooks setup clean lock lock-colab
