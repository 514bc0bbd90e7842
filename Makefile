PYTHON ?= python3

.PHONY: check test claims docs ci

check:  ## the fast path: style, types, import contracts, tests that start no workers
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -c "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
	$(PYTHON) -m pytest -m "not processes"

test:  ## all tests, the ones with real worker processes too
	$(PYTHON) -m pytest

claims:  ## every claim, in full; each says what it measured
	@failed=0; for claim in claims/*; do \
		if [ -f $$claim ] && [ -x $$claim ]; then echo "== $$claim"; $$claim || failed=1; fi; \
	done; exit $$failed

docs:  ## the reference pages from the code, and the site in build/site
	$(PYTHON) docs/tools/reference.py
	$(PYTHON) -m mkdocs build --strict --site-dir build/site

ci:  ## the gate, in its own environment
	.ci/run
