# One word each: make run, make test, make check. Everything else measures or maintains.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 500
DATA   ?= data

.PHONY: run test check sim kill bench bench-acme bench-renew interop docs lock clean

run: $(VENV)/.run
	HOLDFAST_STORE_DATA_DIR=$(DATA) HOLDFAST_LOG_FORMAT=console $(BIN)/holdfast dev $(if $(DEMO_SECONDS),--stop-after $(DEMO_SECONDS))

# The suite starts its own PostgreSQL, from a package and without root.
test: $(VENV)/.dev check
	$(BIN)/pytest -q -n 2 --dist loadgroup

check: $(VENV)/.dev
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_architecture.py

sim: $(VENV)/.dev
	$(BIN)/python -m holdfast.simulation --seeds $(SEEDS)

kill: $(VENV)/.dev
	$(BIN)/python -m tests.kill

bench: $(VENV)/.bench
	$(BIN)/python -m bench

bench-acme: $(VENV)/.bench
	$(BIN)/python -m bench.acme

# certbot comes from the cache folder of interop, and nothing of it is installed here.
bench-renew: $(VENV)/.bench
	$(BIN)/python -m bench.renew

# Other people's ACME clients against ours; they are fetched into a cache folder, never into this environment.
interop: $(VENV)/.dev
	$(BIN)/python -m tests.interop $(INTEROP)

$(VENV)/bin/python:
	@$(PYTHON) scripts/make_venv.py $(VENV)

$(VENV)/.run: requirements/run.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/run.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

# The peers live in the same environment only on machines that measure; they are never a dependency.
$(VENV)/.bench: requirements/bench.txt $(VENV)/.dev
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bench.txt
	@touch $@

docs: $(VENV)/.dev
	$(BIN)/python -m scripts.make_reference

UVC = uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11
lock:
	$(UVC) pyproject.toml requirements/build.in -o requirements/run.txt
	$(UVC) pyproject.toml requirements/build.in --group dev -c requirements/run.txt -o requirements/dev.txt
	$(UVC) --group bench -c requirements/dev.txt -o requirements/bench.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
