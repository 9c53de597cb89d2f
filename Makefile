# node lab: set-up, runs and checks. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup packages run test e2e lint summary confirm-k3s clean

PYTHON ?= python3
VERSIONS ?= v1.36.3,v1.37.2
RESULTS ?= results
# More flags for `lab run` and for pytest.
RUN_FLAGS ?=
PYTEST_FLAGS ?=
# Processes that `make test` uses: one for all that needs guests, the others for the rest. 0: one after the other.
WORKERS ?= 2
# Folder with Kubernetes binaries; empty: the official releases, or a build (see README.md).
ARTIFACTS ?= $(or $(LAB_ARTIFACTS),$(if $(wildcard ../shared/kubernetes),$(CURDIR)/../shared/kubernetes))
ifneq ($(ARTIFACTS),)
export LAB_ARTIFACTS := $(ARTIFACTS)
endif

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := qemu-system-x86 qemu-utils mmdebstrap e2fsprogs fakeroot uidmap debian-archive-keyring openssh-client git

help: ## list the targets
	@echo 'Targets:'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)$$/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z0-9-]*\):.*## /  make \1: /p' Makefile
	@echo 'Variables: VERSIONS=$(VERSIONS) RESULTS=$(RESULTS) ARTIFACTS=$(ARTIFACTS) RUN_FLAGS= PYTEST_FLAGS= WORKERS=$(WORKERS) PYTHON=$(PYTHON)'

setup: packages $(STAMP) ## Debian packages (says which), .venv with the lab; quick when all is there

# Only what is missing is installed, so that an ordinary user without sudo can go on once an administrator has done it.
packages:
	@set -eu; \
	if ! command -v dpkg-query >/dev/null; then \
		echo 'setup: not a Debian system; install the counterparts of: $(PACKAGES)'; exit 0; \
	fi; \
	wanted='$(PACKAGES)'; missing=''; \
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || wanted="$$wanted python3-venv"; \
	for package in $$wanted; do \
		state=$$(dpkg-query --show --showformat='$${db:Status-Status}' "$$package" 2>/dev/null || true); \
		[ "$$state" = installed ] || missing="$$missing $$package"; \
	done; \
	[ -n "$$missing" ] || exit 0; \
	as_root=''; \
	if [ "$$(id -u)" -ne 0 ]; then \
		if ! command -v sudo >/dev/null; then \
			echo "setup: ask an administrator to run: apt-get install --no-install-recommends$$missing" >&2; exit 1; \
		fi; \
		as_root='sudo'; \
	fi; \
	echo "setup: installing Debian packages:$$missing"; \
	$$as_root apt-get update -qq || echo 'setup: apt-get update failed; trying with the lists that are there' >&2; \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq -o DPkg::Lock::Timeout=300 \
		--no-install-recommends $$missing

$(STAMP): pyproject.toml | packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'setup: $(PYTHON) is too old; give PYTHON=… with Python 3.11 or newer' >&2; exit 1; }
	@echo 'setup: installing node lab into $(VENV)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

run: setup ## measure VERSIONS on local guests, then write RESULTS/summary.md
	$(BIN)/lab run --provider qemu --versions $(VERSIONS) --results $(RESULTS) $(RUN_FLAGS)

test: setup ## gates, unit, contract and integration tests, one guest when ARTIFACTS are there
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup $(PYTEST_FLAGS)

e2e: setup ## all stages of one version on a real guest, and the other long tests
	$(BIN)/python -m pytest -m e2e $(PYTEST_FLAGS)

lint: setup ## the gates alone: ruff, mypy, shellcheck, sizes, imports, documents
	$(BIN)/python -m pytest $(PYTEST_FLAGS) tests/test_gates.py

summary: setup ## RESULTS/summary.md anew from stored results alone
	$(BIN)/lab summary --results $(RESULTS)

confirm-k3s: setup ## on a droplet (HOST=user@addr: there): what docs/k3s.md takes from k3s's sources; costs money
	LAB=$(CURDIR)/$(BIN)/lab sh scripts/confirm_k3s.sh

clean: ## remove .venv and tool caches; results and the user's cache stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .ci/cache *.egg-info build
	find lab node-scripts tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
