VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
OUT ?= demo
CORES := $(shell nproc 2>/dev/null || echo 2)
TESTS_AT_ONCE ?= 2

export OMP_NUM_THREADS ?= 1

.PHONY: help install demo test check format bench bench-before clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(BIN)/.installed  ## make a virtual environment in $(VENV) and install everything

$(BIN)/.installed: requirements.txt setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.txt
	touch $@

RUN = $(OUT)/ws-state/pfedsis/latest
EVALUATE = ['bundles/pfedsis/configs/train.yaml','bundles/pfedsis/configs/evaluate.yaml']

demo: export PATH := $(abspath $(BIN)):$(PATH)
demo: export SURGFL_CPU_THREADS = $(CORES)
demo: export SURGFL_SITE_CONFIG = $(abspath $(OUT))/data
demo: install  ## three synthetic hospitals train PFedSIS together; prints a table and the report's path
	mkdir -p $(OUT)
	surgfl render --out $(OUT)/data --sites 3 --frames 16 --videos 3,1,1 --preview $(OUT)/sites.png
	surgfl check-data $(OUT)/data
	nvflare simulator nvflare_jobs/pfedsis -w $(OUT)/ws -n 3
	@for site in site-1 site-2 site-3; do echo "evaluating $$site"; \
	  OMP_NUM_THREADS=$(CORES) python -m monai.bundle run --config_file "$(EVALUATE)" \
	    --site_config $(OUT)/data/$$site/site.yaml --checkpoint $(RUN)/$$site/best.safetensors \
	    --output_dir $(OUT)/evaluations/$$site \
	    > $(OUT)/evaluate-$$site.log 2>&1 || { cat $(OUT)/evaluate-$$site.log; exit 1; }; done
	surgfl report $(RUN) --evaluations $(OUT)/evaluations --out $(OUT)/ws/report/index.html

test: install  ## run all tests, $(TESTS_AT_ONCE) files at once
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile

check: install  ## lint, format and type checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install  ## print the performance ratios of docs/benchmarks.md
	$(BIN)/python -m tests.benchmarks

bench-before: install  ## a round's time beside another checkout's: make bench-before BEFORE=/path/to/it
	$(BIN)/python -m tests.benchmarks.before $(BEFORE)

clean:  ## remove the virtual environment and the demo's output
	rm -rf $(VENV) $(OUT)
