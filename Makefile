VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
OUT ?= demo
TESTS_AT_ONCE ?= 2
DEMO_AT_ONCE ?= 3  # two trainings and a scoring take 6 GB of memory; 1: half as much

export OMP_NUM_THREADS ?= 1
# Images often set it; without compiled modules, each of the hundreds of processes of the tests imports 2 s longer.
# Not compiled beforehand is what few import, two fifths of all; some templates are no Python, and refused.
export PYTHONDONTWRITEBYTECODE =
SELDOM_IMPORTED = /(tests?|transformers/models|torch/testing|sqlalchemy|pip|setuptools|pygments|mypyc?)/

.PHONY: help install demo test test-all test-slow test-production test-flare-versions check docs docs-serve reference format prod-test bench bench-before bench-gpu weights pictures supply-chain dist lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(BIN)/.installed  ## make a virtual environment in $(VENV) and install everything

$(BIN)/.installed: requirements.txt setup.cfg pyproject.toml
	@echo "installing what requirements.txt names into $(VENV): some three minutes, and 6 GB, of which CUDA takes 4"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --disable-pip-version-check --quiet --upgrade pip || true  # Python's own may take twice the time
	@$(BIN)/pip install --disable-pip-version-check --progress-bar off --no-compile \
	  --requirement requirements.txt \
	  > $(VENV)/install.log 2>&1 & pip=$$!; \
	  while sleep 5; kill -0 $$pip 2> /dev/null; do echo "  $$(du -sm $(VENV) | cut -f 1) MB are there"; done; \
	  wait $$pip || { cat $(VENV)/install.log; exit 1; }
	@PYTHONWARNINGS=ignore $(BIN)/python -m compileall -qq -j 0 -x '$(SELDOM_IMPORTED)' $(VENV)/lib || true  # on all cores, unlike pip
	@touch $@

RUN = $(OUT)/ws-state/pfedsis/latest
SITES = site-1 site-2 site-3
EVALUATE = ['bundles/pfedsis/configs/train.yaml','bundles/pfedsis/configs/evaluate.yaml']
received = bundles/pvt_fpn/models/model.safetensors
alone = $(OUT)/alone/models/{site}/best.safetensors
together = $(OUT)/ws/models/{site}/best.safetensors

demo: export PATH := $(abspath $(BIN)):$(PATH)
demo: export SURGFL_SITE_CONFIG = $(abspath $(OUT))/data
demo: install  ## three synthetic hospitals train PFedSIS together; prints tables and the report's path
	mkdir -p $(OUT)
	surgfl render --out $(OUT)/data --sites 3 --looks narrowband,bluelight,greenlight --seed 587 --frames 6 --videos 1,1,4 \
	  --preview $(OUT)/sites.png
	surgfl check-data $(OUT)/data
	rm -rf $(OUT)/evaluations
	@echo "training together; meanwhile each hospital trains alone (log: $(OUT)/alone.txt), and the start is scored"
	@$(MAKE) --no-print-directory -j $(DEMO_AT_ONCE) train-together score-alone score-received
	@echo "scoring the models that were trained together, on the sites' test videos"
	@$(MAKE) --no-print-directory score-together
	surgfl report $(RUN) --evaluations "as received=$(OUT)/evaluations/received" \
	  --evaluations "trained alone=$(OUT)/evaluations/alone" \
	  --evaluations "together=$(OUT)/evaluations/together" --out $(OUT)/ws/report/index.html

train-together:
	nvflare simulator nvflare_jobs/pfedsis -w $(OUT)/ws -n 3 -t 3

train-alone:  # silent: the terminal shows the training together
	@nvflare simulator nvflare_jobs/local -w $(OUT)/alone -n 3 -t 3 > $(OUT)/alone.txt 2>&1 || { cat $(OUT)/alone.txt; exit 1; }

score-alone: train-alone

score-%:  # imports MONAI, which takes longer than a site's frames, once for all sites
	@mkdir -p $(OUT)/evaluations/$*
	@python -c "from multiprocessing import get_context; from monai.bundle import run; sites = [get_context('fork').Process( \
	  target=run, kwargs=dict(config_file=$(EVALUATE), site_config=f'$(OUT)/data/{site}/site.yaml', checkpoint=f'$($*)', \
	  output_dir=f'$(OUT)/evaluations/$*/{site}')) for site in '$(SITES)'.split()]; \
	  [site.start() for site in sites]; [site.join() for site in sites]; raise SystemExit(any(site.exitcode for site in sites))" \
	  > $(OUT)/evaluations/$*.txt 2>&1 || { cat $(OUT)/evaluations/$*.txt; exit 1; }

test: install  ## run the fast tests, $(TESTS_AT_ONCE) at once: minutes
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile -m "not slow"

test-all: test  ## run the slow ones besides: real simulators, command lines, federations of real processes
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-slow test-production

test-slow: install
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m slow --ignore tests/production

test-production: install  # in processes of their own: FLARE's sessions do not share one with other tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow tests/production

FAST_FLARE = $(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile -m "not slow" tests/flare

test-flare-versions: install  ## run the fast tests of flare/ with each other supported version of FLARE
	@set -e; for version in $$($(BIN)/python -m shared_components.flare.patches.versions); do \
	  flare=$(VENV)/flare-$$version; echo "fast tests of flare/ with FLARE $$version"; \
	  test -d $$flare/nvflare || $(BIN)/pip install --disable-pip-version-check --quiet --no-deps --target $$flare nvflare==$$version; \
	  PYTHONPATH=$$flare $(BIN)/python -c "import nvflare; assert nvflare.__version__ == '$$version', nvflare.__file__"; \
	  PYTHONPATH=$$flare $(FAST_FLARE); \
	done

check: install  ## lint, format, types, files that are generated, and the documentation with all of its links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/surgfl bundles --check
	$(BIN)/surgfl jobs --check
	$(BIN)/python -m evidence.reference --check
	@$(MAKE) --no-print-directory docs SITE=$(VENV)/site

SITE ?= build/site

docs: install  ## build the documentation into $(SITE); a broken link or anchor is an error
	$(BIN)/sphinx-build -q -n -W --keep-going -c docs -d $(VENV)/doctrees . $(SITE)

docs-serve: docs  ## build the documentation and show it at http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) 8000

reference: install  ## write the pages of docs/reference/ that are generated from the code
	$(BIN)/python -m evidence.reference

format: install  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

prod-test: install  ## provision a federation of real processes, break it in many ways, print what survived
	$(BIN)/python -m evidence.production

bench: install  ## print the performance ratios of docs/results/benchmarks.md
	$(BIN)/python -m evidence.benchmarks

bench-before: install  ## a round's time beside another checkout's: make bench-before BEFORE=/path/to/it
	$(BIN)/python -m evidence.benchmarks.before $(BEFORE)

bench-gpu: install  ## training steps, rounds and predictions on an NVIDIA GPU: at most eight minutes
	$(BIN)/python -m evidence.benchmarks.bench_gpu

RECIPE ?= pvt_fpn

weights: install  ## make a bundle's weights from random ones: days at the lowest priority; goes on where it stopped
	nice -n 19 $(BIN)/surgfl weights $(RECIPE) --out weights/$(RECIPE) $(if $(REAL),--real $(REAL))

pictures: install  ## make the documents' pictures anew; trains a small comparison and needs a Chromium
	$(BIN)/python -m evidence.pictures

TOOLS = $(VENV)/supply-chain

$(TOOLS)/.installed: evidence/supply_chain/tools.txt
	@$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --disable-pip-version-check --quiet --requirement $<
	@touch $@

supply-chain: install $(TOOLS)/.installed  ## hashes, vulnerabilities, bandit, licences, SBOM, wheel, containers
	$(TOOLS)/bin/python -m evidence.supply_chain --out $(OUT)/supply-chain --python $(BIN)/python

dist: $(TOOLS)/.installed  ## build the wheel and the source distribution in dist/, and check both
	rm -rf dist
	$(TOOLS)/bin/python -m build --no-isolation --outdir dist .
	$(TOOLS)/bin/twine check --strict dist/*

lock: install $(TOOLS)/.installed  ## resolve shared_components/flare/deployment/requirements.lock anew
	$(TOOLS)/bin/python -m evidence.supply_chain --write-lock

clean:  ## remove the virtual environment and the demo's output
	rm -rf $(VENV) $(OUT)
