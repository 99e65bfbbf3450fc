# Two commands do everything, set-up included: `make demo` and `make test`.
#   PYTHON=python3.12 make env    the machine's own Python, if it is not python3
#   MINATO_CACHE=DIR make env     where the environments lie (default: the user's cache folder)
#   DEMO_ARGS=--quick make demo
#   PYTEST_ARGS='-k order -x' make test
#   PYTEST_ARGS='-n 0 --pdb' make test    all in one process
#   BENCH_ARGS='trivial first-batch' make bench

PYTHON ?= python3
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

FREE := .venv/bin/python
GIL := .venv-gil/bin/python
# Many tests wait, so one more process than there are cores. The tests of a file share what is costly
# and stay together; those that take longest are in the first folders.
AT_ONCE = -n $$(( $$(nproc) + 1 )) --dist loadfile --no-loadscope-reorder
# Chosen by the shell when a recipe runs, for `env` may only just have made the links.
BEST = $$(if [ -x $(FREE) ]; then echo $(FREE); else echo $(GIL); fi)
TOOLS = $$(if [ -x $(GIL) ]; then echo $(GIL); else echo $(FREE); fi)
CODE = $(wildcard minato_async benchmarks examples tools)

.PHONY: help env demo test bench lint types format clean

help:
	@echo "make demo    train on real photos, with torch's DataLoader and with MinatoLoader"
	@echo "make test    the tests, on free-threaded Python and on the machine's own"
	@echo "make bench   the figures to reach, each measured against its peers"
	@echo "make env     only the set-up: .venv (free-threaded) and .venv-gil"
	@echo "make lint | types | format | clean"

env:
	@$(PYTHON) tools/make_env.py

demo:
	@$(PYTHON) tools/make_env.py demo
	@exec .venv-demo/bin/python -m minato_async.cli demo $(DEMO_ARGS)

# A failure on one interpreter does not hide those on the other; an interruption (2) ends both.
test: env
	@failed=0; for python in $(FREE) $(GIL); do \
		if [ -x $$python ]; then \
			echo "test: $$($$python -VV) ($$python)"; \
			$$python -m pytest tests $(AT_ONCE) -o cache_dir=.pytest_cache/$$python $(PYTEST_ARGS) || failed=$$?; \
			if [ $$failed = 2 ]; then exit 2; fi; \
		fi; \
	done; exit $$failed

bench: env
	@exec $(BEST) -m benchmarks $(BENCH_ARGS)

lint: env
	@$(TOOLS) -m ruff check .
	@$(TOOLS) -m ruff format --check .

types: env
	@$(TOOLS) -m mypy --strict $(CODE)

format: env
	@$(TOOLS) -m ruff check --fix .
	@$(TOOLS) -m ruff format .

clean:
	rm -rf .venv .venv-gil .venv-demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
