PYTHON ?= python3

.PHONY: check test claims ci

check:  ## the fast path: style, types, import contracts, tests that start no workers
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -c "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
	$(PYTHON) -m pytest -m "not processes"

test:  ## all tests, the ones with real worker processes too
	$(PYTHON) -m pytest

claims:  ## every claim of the README, in full; each says what it measured
	@failed=0; for claim in claims/*; do \
		if [ -f $$claim ] && [ -x $$claim ]; then echo "== $$claim"; $$claim || failed=1; fi; \
	done; exit $$failed

ci:  ## the gate, in its own environment
	.ci/run
