# Every target sets up what it needs: a clean clone and Python 3.11+ are enough.
PYTHON ?= python3
VENV := .venv
NPM := $(patsubst %,%/node_modules/.package-lock.json,tests/azurite tests/console/axe tests/interop/javascript)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
# Many tests wait for SDKs and Spark: processes beside each other, files stay whole. JOBS=0: in one process.
# Each reads all tests first and starts databases of its own, 30 s of CPU: six take longer on two cores.
JOBS ?= 4
PYTEST = $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Let Spark start quickly and, in a new clone, compile the tests once: else each process does, 10 s of CPU.
READY = mkdir -p build; test -e build/compiled || $(BIN)/python -m pytest --collect-only -qq >build/compiled & modules=$$!; \
	$(BIN)/python -m tests.support.quick_spark && wait $$modules
# Compiled modules are kept even where the environment forbids it: else each process compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test quick long upgrade release damage crashes check docs site bench floods screenshots chaos chaos-hosts chaos-spark spark-matrix interop lock audit sbom clean npm vendor

demo: $(DEMO)  ## set up what it needs, and run the main job: real flights through the log and Spark into SQL
	$(BIN)/python -m examples.flights $(ARGS)

test: $(STAMP)  ## set up and run the tests but those of `long`; prints loudly what it had to skip
	$(READY)
	$(PYTEST) -m "not (faults or programs)" $(ARGS)

LONG ?= faults or programs
long: JOBS = 3  # with four clusters at once on two cores, databases do not answer hosts in time
long: $(STAMP)  ## tests that run whole programs, or kill processes at random moments: minutes each; CI runs some
	$(READY)
	$(PYTEST) -m "$(LONG)" $(ARGS)

upgrade: JOBS = 2  # each runs a cluster of hosts, or Spark
upgrade: $(STAMP)  ## earlier versions of this code and today's: one data directory, group, checkpoint in turn; minutes
	$(READY)
	TIDEGATE_UPGRADE=whole $(PYTEST) tests/upgrade $(ARGS)

# Left out: tests/needs.py and pyproject.toml say what a marker means, and a test without any that needs one fails.
quick: JOBS = 3
quick: $(STAMP)  ## lint, types, import contracts, short tests (pyproject.toml: slow) without Spark, browsers, SDKs, databases
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!; \
	$(BIN)/lint-imports && \
	$(PYTEST) -q $(ARGS) \
		-m "not (spark or postgresql or mariadb or browser or azurite or sdk or faults or programs or slow)"; \
	tests=$$?; wait $$types && exit $$tests

# TIDEGATE_REPOSITORY=https://HOST/OWNER/NAME: the address that the metadata and README's links name. --only-build: no trials.
release: $(STAMP) build/supply/.installed  ## build sdist and wheels in dist/; install them into empty environments and try them
	$(BIN)/python -m tools.release --twine build/supply/bin/twine $(ARGS)

npm: $(NPM)  ## install what tests need of npm: Azure Storage's emulator, the JavaScript SDK, axe-core

check: $(STAMP)  ## lint, format, types, import contracts, docs, versions of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!; \
	$(BIN)/lint-imports && \
	$(BIN)/python -m pytest tests/test_dependencies.py tests/test_history.py tests/test_words.py tests/test_docs.py tests/test_docs_site.py tests/test_docs_states.py tests/test_compatibility.py tests/examples/test_demo_guides.py tests/examples/test_public_api.py tests/test_needs.py -q -m "not spark"; \
	tests=$$?; wait $$types && exit $$tests

docs: $(STAMP)  ## renew the reference pages that are made from the code
	$(BIN)/python -m tools.reference docs/reference
	$(BIN)/python -m tests.compatibility docs/reference

site: $(STAMP)  ## build docs/ into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Built: site/index.html. It opens from the disk; with its search: $(PYTHON) -m http.server -d site"

screenshots: $(STAMP)  ## renew the pictures of console and demo in docs/images; needs Chromium
	$(BIN)/python -m bench.screenshots $(ARGS)

bench: $(STAMP)  ## rates, latency and memory beside their targets; goes on where it was cut off; ARGS=--quick
	$(BIN)/python -m bench $(ARGS)

floods: $(STAMP)  ## attack a service of our own on loopback: what a quiet user notices, memory, and how it ends
	$(BIN)/python -m bench.floods $(ARGS)

damage: $(STAMP)  ## damage real logs at random, N times: nothing may be lost in silence, altered, or given again
	$(BIN)/python -m tests.storage.damage --cases $(or $(N),3000) $(ARGS)

crashes: $(STAMP)  ## N power losses of a simulated disk, and N kills of a process that appends: nothing may be lost
	$(BIN)/python -m tests.storage.crashes --losses $(or $(N),1000) --kills $(or $(N),1000) $(ARGS)

chaos: chaos-hosts chaos-spark  ## a million events each through hosts and through a Spark cluster under faults

chaos-hosts: $(STAMP)  ## hosts that are killed, paused and cut off; on each database
	$(BIN)/python -m tests.processor.faults $(ARGS)

chaos-spark: $(STAMP)  ## executors, driver, service and database killed, speculation on; per event and aggregated
	TIDEGATE_KILLS=10 $(BIN)/python -m pytest -q tests/spark/test_crashes.py
	$(BIN)/python -m tests.spark.faults $(ARGS)

# VERSION=4.1 for one of them. Environments of about 1 GB each, below build/.
spark-matrix: $(STAMP)  ## each version of PySpark, also with Spark Connect: installs them and runs a program; ~30 min
	$(BIN)/python -m tests.spark.matrix $(VERSION:%=--version %) $(ARGS)

interop: $(STAMP) $(NPM)  ## official and generic clients against a real service; fetches them from their registries
	$(BIN)/python -m tests.interop.suites $(ARGS)

INSTALLS := requirements.lock pyproject.toml hatch_build.py src/tidegate/wire/_usual_events.pyx
# Python compiles what it imports, and keeps that: half a minute less than all that is installed, and most is never used.
PIP = $(BIN)/python -m pip install --disable-pip-version-check --no-compile

$(STAMP): $(INSTALLS)
	$(new-venv)
	$(PIP) --quiet --require-hashes -r requirements.lock
	$(PIP) --quiet --no-deps --no-build-isolation --editable .
	touch $(DEMO) $(STAMP)

# Nothing to test, lint, or make documents with. Spark and its Java are most of it.
$(DEMO): $(INSTALLS) tools/lock.py
	@mkdir -p build
	$(new-venv)
	@$(BIN)/python -m tools.lock service,spark,demos >build/demo.txt
	@echo "Installing what the demo needs into $(VENV), once: $$(grep -c == build/demo.txt) packages, 1.1 GB, most of it Spark."
	$(PIP) --require-hashes -r build/demo.txt
	$(PIP) --quiet --no-deps --no-build-isolation --editable .
	touch $(DEMO)

define new-venv
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidegate needs Python 3.11 or newer; this is %s. Set PYTHON=/path/to/python3.11." % sys.version.split()[0])'
$(PYTHON) -m venv $(VENV)
endef

$(NPM): %/node_modules/.package-lock.json: %/package-lock.json %/package.json
	npm ci --prefix $* --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

lock:  ## renew requirements.lock from pyproject.toml
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --generate-hashes --no-emit-index-url --python-version 3.11 --upgrade --quiet --output-file requirements.lock

# Tools with many dependencies stay out of .venv, which holds what requirements.lock says and nothing else.
build/supply/.installed: Makefile
	$(PYTHON) -m venv build/supply
	build/supply/bin/pip install --quiet --disable-pip-version-check "pip-audit>=2.9" "cyclonedx-bom>=7" "twine>=6.1" packaging
	touch $@

audit: build/supply/.installed  ## ask PyPI's advisories about every locked version; says loudly when it cannot
	build/supply/bin/python -m tools.audit

sbom: build/supply/.installed  ## write a bill of materials (CycloneDX, JSON) to build/tidegate.cdx.json
	build/supply/bin/python -m tools.sbom build/tidegate.cdx.json

vendor: $(STAMP)  ## renew the libraries that the console ships, from npm, at the versions of vendor.json
	$(BIN)/python -m tools.vendoring

clean:
	rm -rf $(VENV) build dist tests/azurite/node_modules tests/console/axe/node_modules tests/interop/javascript/node_modules
