# One word each: make run, make test, make check. Everything else measures or maintains.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 500
DATA   ?= data
# The suite starts hundreds of processes: byte code that is kept saves each of them compiling the product again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check sim sim-year kill cluster attack pending bench bench-acme bench-cores bench-witness bench-renew bench-notifications bench-api bench-web bench-faces bench-deploy contract interop shape docs release packages python-next image lock clean

run: $(VENV)/.run
	HOLDFAST_STORE_DATA_DIR=$(DATA) $(BIN)/holdfast dev $(if $(DEMO_SECONDS),--stop-after $(DEMO_SECONDS))

# The suite starts its own PostgreSQL, from a package and without root. Three at a time: on two cores a third mostly waits.
test: $(VENV)/.dev check
	$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.dev
	$(BIN)/ruff check src tests bench scripts
	$(BIN)/ruff format --check src tests bench scripts
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_architecture.py

sim: $(VENV)/.dev
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(LIVES),--lives $(LIVES))

# Ten thousand certificates for a year, in a storm, in an outage, and revoked together: minutes, and figures.
sim-year: $(VENV)/.dev
	$(BIN)/python -m tests.simulation --experiment all

kill: $(VENV)/.dev
	$(BIN)/python -m tests.kill

# Failover, partitions, freezes, a full disk and a power cut, on real PostgreSQL under Patroni; needs root, says what else.
cluster: $(VENV)/.dev
	$(BIN)/python -m tests.cluster $(CLUSTER)

# What can be done to a server from outside, bounded and on loopback: its memory, its probes and other clients meanwhile.
attack: $(VENV)/.dev
	$(BIN)/python -m tests.attack $(ATTACK)

# Orders that a CA keeps pending for days.
pending: $(VENV)/.dev
	$(BIN)/python -m bench.pending

bench: $(VENV)/.bench
	$(BIN)/python -m bench

bench-acme: $(VENV)/.bench
	$(BIN)/python -m bench.acme

# What the witness costs: ACME certificates a second with it on the disk and in memory, on both stores.
bench-witness: $(VENV)/.bench
	$(BIN)/python -m bench.witness

# With 1, 2 and 4 processes on PostgreSQL, per second and per second of processor time; statements of an order.
bench-cores: $(VENV)/.bench
	$(BIN)/python -m bench.acme.cores

# certbot comes from the cache folder of interop, and nothing of it is installed here.
bench-renew: $(VENV)/.bench
	$(BIN)/python -m bench.renew

# Lists of the API among a hundred thousand certificates.
bench-api: $(VENV)/.bench
	$(BIN)/python -m bench.api

# The pages among a hundred thousand certificates, and in Chromium.
bench-web: $(VENV)/.bench
	$(BIN)/python -m bench.web

# Ten thousand notifications through a real web hook, and outages of hours and days in skipped time.
bench-notifications: $(VENV)/.dev
	$(BIN)/python -m bench.notifications

# A thousand certificates on twenty real nginx, and what watching ten thousand endpoints costs.
bench-deploy: $(VENV)/.dev
	$(BIN)/python -m bench.deploy
	$(BIN)/python -m bench.watch

# Everything that the API's own document lets one ask, and much that it does not.
contract: $(VENV)/.dev
	$(BIN)/python -m tests.contract

# How soon `holdfast --help` is there, and what a scrape of /metrics costs with 100,000 certificates.
bench-faces: $(VENV)/.dev
	$(BIN)/python -m bench.faces

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

# Lines, modules, repeated names, files touched by a change: the figures of the source, beside their goals.
shape: $(VENV)/.dev
	$(BIN)/python -m scripts.shape

# Writes the table of commands and docs/reference from the code, then all pages as a site into site/.
docs: $(VENV)/.docs
	$(BIN)/python -m scripts.command_table
	$(BIN)/python -m scripts.make_reference
	$(BIN)/zensical build --strict

# Pictures of the main pages, in light and dark, from the demo; Chromium comes from the system.
pictures: $(VENV)/.dev
	$(BIN)/python -m scripts.pictures

$(VENV)/.docs: requirements/docs.txt $(VENV)/.dev
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

# Wheel, Debian package, chart, bill of materials and checksums, in dist/.
release: $(VENV)/.dev
	$(BIN)/python -m scripts.release

# Installs the Debian package into a bare Debian, uses it there, and purges it; needs root and debootstrap.
packages: release
	$(BIN)/python -m scripts.try_package

# The image, if a base for it can be had here; else the reason why not.
image:
	$(PYTHON) scripts/try_image.py

# The tests with the Python of another Debian release (NEXT=trixie: 3.13, NEXT=sid: a newer one); needs root and debootstrap.
NEXT ?= trixie
python-next: $(VENV)/.dev
	$(BIN)/python -m scripts.python_next $(NEXT) $(TESTS)

UVC = uv pip compile -q --universal --generate-hashes --no-header --python-version 3.11
lock:
	$(UVC) pyproject.toml requirements/build.in -o requirements/run.txt
	$(UVC) pyproject.toml requirements/build.in --group dev -c requirements/run.txt -o requirements/dev.txt
	$(UVC) --group bench -c requirements/dev.txt -o requirements/bench.txt
	$(UVC) --group docs -c requirements/dev.txt -o requirements/docs.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .cache .hypothesis site
	find src tests bench scripts -name __pycache__ -prune -exec rm -rf {} +
