# `make demo` and `make test` need Python 3.11 to 3.14 and nothing else: they make .venv themselves.
.DEFAULT_GOAL := help
.PHONY: help setup demo reproduce test test-full test-parity test-faults test-browser lint docs wheel bench clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_DOCS := $(VENV)/.installed-docs
PYTHON ?=
# Of two calls at once, the second one waits, and then finds what the first has made; without flock, it does not wait.
LOCK = exec 9<Makefile; ! command -v flock >/dev/null || flock 9;
INSTALL = echo "installing into $(VENV)"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]" && touch $(STAMP)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## make .venv with the newest supported Python, or with PYTHON=/path/to/python
	@echo "$(VENV): $$($(BIN)/python --version)"

# Made once: packages are added to an existing environment, which may be in use; it is never cleared.
$(BIN)/python:
	@$(LOCK) [ ! -x $@ ] || exit 0; \
	python=$$(sh launch/find_python.sh "$(PYTHON)") || exit 2; \
	echo "making $(VENV) with $$("$$python" --version), $$python"; \
	"$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 2; }; $(INSTALL)

$(STAMP): pyproject.toml | $(BIN)/python
	@$(LOCK) [ $@ -nt pyproject.toml ] || { $(INSTALL); }

demo: $(STAMP) ## train the built-in translator, score it, draw its attention
	@$(BIN)/jaxformer demo --out runs/demo

reproduce: $(STAMP) ## train on Multi30k, from the corpus to the figure: about an hour on 2 cores; resumes
	@$(BIN)/python -m experiments.translation --out runs/reproduce

test: $(STAMP) ## run the tests, without network access: 8 to 12 minutes on 2 cores the first time, 6 later
	@$(BIN)/python -m pytest -n 2 --max-worker-restart=0 --dist loadfile -q

test-full: $(STAMP) ## test all combinations of parameters, 50 minutes; with real corpora if JAXFORMER_DATA is set
	@$(BIN)/python -m pytest -n 2 --max-worker-restart=0 -q -m full

test-parity: $(STAMP) ## compare with jax.nn and flax, and with PyTorch, transformers, wandb and mlflow if installed
	@$(BIN)/python -m pytest -n 2 --max-worker-restart=0 -q -m parity

test-faults: $(STAMP) ## kill processes, damage files, fill disks
	@$(BIN)/python -m pytest -n 2 --max-worker-restart=0 --dist loadfile -q -m faults

test-browser: $(STAMP) ## open pages in a browser: needs chromium, and pip install playwright
	@$(BIN)/python -m pytest -q -rs -m browser

lint: $(STAMP) ## run ruff, typos, pyright and import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/typos
	@$(BIN)/pyright
	@$(BIN)/lint-imports

# The tools of the site are for this target only; the site then opens from its files, without a server or a network.
$(STAMP_DOCS): $(STAMP)
	@$(LOCK) [ $@ -nt $(STAMP) ] || { echo "installing the tools of the site into $(VENV)"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,docs]" && touch $@; }

docs: $(STAMP_DOCS) ## build the site in build/docs, run its notebooks, check its links; warnings are errors
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs -d .cache/docs/doctrees . build/docs
	@$(BIN)/python docs/check_links.py build/docs

wheel: $(STAMP) ## build the wheel into dist/
	@rm -rf dist build
	@$(BIN)/python -m build --wheel --outdir dist .

bench: $(STAMP) ## measure the data pipeline and a training step; benchmarks/README.md has other benchmarks
	@$(BIN)/python -m benchmarks.data_throughput
	@$(BIN)/python -m benchmarks.train_step

clean: ## remove .venv, caches and build outputs (not runs/)
	@rm -rf $(VENV) .cache build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
