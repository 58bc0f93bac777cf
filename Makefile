# Every target sets up what it needs in .venv; nothing is installed outside this folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready

.PHONY: demo test lint docs bench clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(READY)  ## build, update twice, query and evaluate on the shipped pictures
	$(BIN)/python examples/demo.py

test: $(READY)  ## the whole suite, with statement coverage
	$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered

lint: $(READY)  ## style, types, layering, and docs that are generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p woh_faiss
	$(BIN)/mypy cli
	$(BIN)/lint-imports
	$(BIN)/cog --check README.md docs/*.md

docs: $(READY)  ## regenerate the generated parts, then the site in site/
	$(BIN)/cog -r README.md docs/*.md
	$(BIN)/mkdocs build --strict --quiet -f .ci/mkdocs.yml

bench: $(READY)  ## the benchmarks behind the README's figures; ratios taken in one run
	$(BIN)/python examples/benchmarks/start_up.py
	$(BIN)/python examples/benchmarks/update_cost.py
	$(BIN)/python examples/benchmarks/rerank_cost.py
	$(BIN)/python examples/benchmarks/reader_cost.py
	$(BIN)/python examples/benchmarks/serving.py
	$(BIN)/python examples/benchmarks/long_life.py
	$(BIN)/python examples/benchmarks/scale.py

clean:
	rm -rf $(VENV) build dist site *.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
