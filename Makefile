# Every target sets up what it needs in .venv; nothing is installed outside this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/demo
READY  := $(VENV)/ready
RIVALS := $(VENV)/rivals

# Modules and tests are compiled once, not in each of the many processes of the suite.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint docs bench bench-quick bench-life attack clean

$(DEMO): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable .
	touch $@

$(READY): $(DEMO)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(DEMO)  ## build, update twice, query and evaluate on the shipped pictures
	$(BIN)/python examples/demo.py

test: $(READY)  ## the whole suite in two processes, long tests at a quarter of their length (WOH_FULL=1: all of it)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup $(PYTEST)

lint: $(READY)  ## style, types, layering, docs that are generated, and a site without dead links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p woh_faiss
	$(BIN)/mypy cli
	$(BIN)/lint-imports
	$(BIN)/cog --check README.md docs/*.md
	$(BIN)/mkdocs build --strict -f .ci/mkdocs.yml --site-dir $(CURDIR)/$(VENV)/site

docs: $(READY)  ## regenerate the generated parts, then the site in site/
	$(BIN)/cog -r README.md docs/*.md
	$(BIN)/mkdocs build --strict -f .ci/mkdocs.yml

$(RIVALS): $(READY)
	$(BIN)/pip install --quiet --editable '.[dev,bench]'
	touch $@

bench: $(RIVALS)  ## every performance figure, as a ratio taken in one run: under a quarter of an hour; see docs/performance.md
	$(BIN)/python examples/benchmarks/performance
	$(BIN)/cog -r docs/performance.md

bench-quick: $(READY)  ## some of them in two minutes; fails if one is a quarter worse than the kept one
	$(BIN)/python examples/benchmarks/performance --quick

bench-life: $(RIVALS)  ## what takes long: serving beside a writer, an index that lives long
	$(BIN)/python examples/benchmarks/reader_cost.py
	$(BIN)/python examples/benchmarks/serving.py
	$(BIN)/python examples/benchmarks/server.py
	$(BIN)/python examples/benchmarks/server_soak.py
	$(BIN)/python examples/benchmarks/long_life.py
	$(BIN)/python examples/benchmarks/scale.py

MINUTES ?= 10
attack: $(READY)  ## kills, errors, damage and hostile files for MINUTES; see docs/reliability.md
	$(BIN)/python tests/attack --checkout . --minutes $(MINUTES)

clean:
	rm -rf $(VENV) build dist site *.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
