# `make demo` and `make test` set up everything they need: a virtual environment in .venv, the
# package with its extension, then the work.  Stamp files make the second run start at once.

VENV ?= .venv
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

RUN := $(VENV)/bin/python
EXTRAS := torch,plots,demo,examples,experiments,dev
# One thread per rank: several ranks share the cores of one machine.
TORCHRUN := OMP_NUM_THREADS=1 $(VENV)/bin/torchrun --standalone --nproc-per-node=2
STAMPS := $(VENV)/.stamps
EXTENSION_SOURCES := setup.py $(wildcard dblp/*.pyx dblp/*.pxd dblp/csrc/*.h dblp/csrc/*.pxi)

.DEFAULT_GOAL := help
.PHONY: help demo example test bench-smoke bench-micro lint build clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMPS)/extension-auto ## Train with DBLP and with the baseline, print the table (ARGS=...)
	$(VENV)/bin/dblp demo $(ARGS)

example: $(STAMPS)/extension-auto ## Train the DDP examples on 2 ranks (ARGS="--transport gloo")
	$(TORCHRUN) examples/ddp_cifar.py --steps 200 $(ARGS)
	$(TORCHRUN) examples/ddp_gpt2.py --steps 60 $(ARGS)

test: $(STAMPS)/extension-require ## Run all tests (ARGS="-k name" for some of them)
	DBLP_EXTENSIONS=require $(RUN) -m pytest $(ARGS)

bench-smoke: $(STAMPS)/extension-require ## Run every bench at its smallest size
	$(RUN) -m pytest tests/bench bench --benchmark-disable $(ARGS)

bench-micro: $(STAMPS)/extension-require ## Measure steps and loopback rounds (JSON in bench/results)
	mkdir -p bench/results
	$(RUN) -m pytest bench/micro --benchmark-enable --benchmark-group-by=func \
		--benchmark-json=bench/results/micro.json $(ARGS)

lint: $(STAMPS)/extension-require ## Check style and types
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	PATH="$(abspath $(VENV))/bin:$$PATH" cython-lint $(wildcard dblp/*.pyx dblp/*.pxd)

build: $(STAMPS)/extension-require ## Build the extension in place

clean: ## Remove what was built, but not .venv
	rm -rf build dist *.egg-info dblp/*.so $(STAMPS)/extension-*

$(RUN):
	@test -n "$(PYTHON)" || { echo "dblp needs Python 3.11 or newer: install it, or set PYTHON" >&2; \
	exit 1; }
	$(PYTHON) -m venv $(VENV)

# The build tools come first and from the constraints, so that the extension is built with the same
# Cython here and below.  The extension is left to the two rules after this one.
$(STAMPS)/install: pyproject.toml constraints.txt | $(RUN)
	mkdir -p $(STAMPS)
	$(RUN) -m pip install -q -c constraints.txt setuptools cython
	DBLP_EXTENSIONS=skip $(RUN) -m pip install -q --no-build-isolation -e '.[$(EXTRAS)]' -c constraints.txt
	touch $@

# auto: a machine without a C compiler still gets the demo.  require: the tests want both fast paths.
$(STAMPS)/extension-auto $(STAMPS)/extension-require: $(STAMPS)/extension-%: \
		$(EXTENSION_SOURCES) $(STAMPS)/install
	DBLP_EXTENSIONS=$* $(RUN) setup.py -q build_ext --inplace
	touch $@
