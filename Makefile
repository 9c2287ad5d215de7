# make build   bin/dsmfs
# make test    everything that CI runs; installs what it needs
# make chaos   programs on a cluster while nodes are killed, stopped and cut off: HOURS=0.05, SEED=
# make demo    trains a classifier on three mounts of this machine
# make bench   measures against yardsticks of the same machine
# make fuzz    every fuzz target for a while; FUZZTIME=30s
# make simulate the simulator of the data plane with new seeds: RUNS=200 of each kind
# make seeds   10,000 of its runs, with the same seeds each time, as CI has them
# make install the program, its mount helper, manual, completions and systemd unit: PREFIX=/usr/local, DESTDIR=
# make uninstall  removes what install has put there
# make clean   removes what the others made here

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

FUZZTIME ?= 30s
VERSION := $(shell scripts/version.sh)

# Everything but the black-box tests and the checks of the source.
PRODUCT = $$(go list ./... | grep -v -e /integration -e /internal/lint$$)
SUM = .venv/bin/python scripts/gotest.py

.PHONY: build
build: shim # Static: it runs on any Linux of the architecture. go build is quick when nothing changed.
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/dsmfs ./cmd/dsmfs

# The library that dsmfs run preloads is embedded in the binary; without a C compiler the verb says so.
SHIM = cmd/dsmfs/shim/libdsmfs.so

.PHONY: shim
shim:
	@if command -v gcc >/dev/null; then $(MAKE) --silent $(SHIM); fi

$(SHIM): shim/client.c shim/pieces.h shim/shim.c shim/shim.h shim/shown.c include/dsmfs.h
	@gcc -O2 -fPIC -shared -Wall -Wextra -Werror -fvisibility=hidden -ftls-model=initial-exec -o $@ shim/client.c shim/shim.c shim/shown.c -pthread

.PHONY: test
test: deps lint unit race invariants integration chaos python
	@echo "all passed"

# In this order also with -j: the machine is small and the tests have deadlines.
.NOTPARALLEL:

.PHONY: deps
deps: .venv/.requirements-dev
	@scripts/deps.sh

# The stamps are copies of the files that were installed. scripts/demo.sh keeps the first one likewise.
.venv/.requirements: requirements.txt
	@scripts/deps.sh
	@test -x .venv/bin/python || python3 -m venv .venv
	@cmp -s $< $@ || { echo "installing the Python packages of $< into .venv"; .venv/bin/pip install --quiet --disable-pip-version-check -r $<; }
	@cp $< $@

.venv/.requirements-dev: requirements-dev.txt .venv/.requirements
	@echo "installing the Python packages of $< into .venv"
	@.venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@cp $< $@

.PHONY: lint
lint: deps
	@go test -count=1 -json ./internal/lint | $(SUM) "checks of the source"

.PHONY: unit
unit: deps shim
	@go test -timeout 30m -json $(PRODUCT) | $(SUM) "unit tests"

.PHONY: race
race: deps shim
	@go test -race -timeout 60m -json $(PRODUCT) | $(SUM) "unit tests with the race detector"

.PHONY: invariants
invariants: deps shim
	@go test -tags invariants -timeout 45m -json $(PRODUCT) | $(SUM) "unit tests with invariants checked"

# One package at a time: they mount, and make network namespaces.
.PHONY: integration
integration: deps build
	@go test -p 1 -timeout 80m -count=1 -json $$(go list ./integration/... | grep -v /chaos$$) | $(SUM) "integration tests"

# Rounds of half a minute, each with a seed that repeats it; the first one is drawn unless it is given.
HOURS ?= 0.05
SEED ?=

.PHONY: chaos
chaos: deps build
	@seed=$(SEED); seed=$${seed:-$$(($$(date +%s) % 100000000))}; echo "chaos for $(HOURS) hours from seed $$seed on"; \
	status=0; go test ./integration/chaos -timeout 0 -count=1 -json -seed $$seed -for $(HOURS)h -tally "$$PWD/bin/chaos.txt" | $(SUM) "chaos" || status=$$?; \
	cat bin/chaos.txt || true; exit $$status

# PyTorch is outside the tree: make clean leaves it.
.PHONY: torch
torch: deps
	@scripts/torch.sh >/dev/null

.PHONY: python
python: deps torch build
	@if find pybind examples -name 'test_*.py' 2>/dev/null | grep -q .; then .venv/bin/python -m pytest --quiet; fi

.PHONY: demo
demo: build
	@scripts/demo.sh

.PHONY: bench
bench: deps build
	@scripts/deps.sh iperf3
	@go run ./bench

.PHONY: fuzz
fuzz:
	@scripts/fuzz.sh $(FUZZTIME)

RUNS ?= 200

.PHONY: simulate
simulate:
	@go test ./coherence -run 'TestSimulation$$' -sim.fresh -sim.runs=$(RUNS) -timeout 24h

# 100 of each of the 100 kinds. A run has one processor. Daemons that a run has killed leave mappings in its process, of which the kernel allows 65530: so there are six.
SEEDS ?= 100

.PHONY: seeds
seeds: deps
	@part() { go test ./coherence -run 'TestSimulation$$' -sim.runs=$(SEEDS) -sim.part=$$1/6 -timeout 85m -json | $(SUM) "simulations, part $$1"; }; \
	parts() { failed=0; for k; do part $$k || failed=$$?; done; return $$failed; }; \
	parts 0 2 4 & other=$$!; status=0; parts 1 3 5 || status=$$?; wait $$other || status=$$?; exit $$status

# mount(8) looks for helpers in /sbin alone, so that does not follow PREFIX.
PREFIX ?= /usr/local
DESTDIR ?=
HELPERDIR ?= /sbin
BINARY ?= bin/dsmfs

PROGRAM = $(PREFIX)/bin/dsmfs
HELPER = $(HELPERDIR)/mount.dsmfs
HEADER = $(PREFIX)/include/dsmfs.h
MANUAL = $(PREFIX)/share/man/man8/dsmfs.8
HELPERMANUAL = $(PREFIX)/share/man/man8/mount.dsmfs.8
LICENSECOPY = $(PREFIX)/share/doc/dsmfs/LICENSE
BASHSCRIPT = $(PREFIX)/share/bash-completion/completions/dsmfs
ZSHSCRIPT = $(PREFIX)/share/zsh/site-functions/_dsmfs
FISHSCRIPT = $(PREFIX)/share/fish/vendor_completions.d/dsmfs.fish
UNIT = $(PREFIX)/lib/systemd/system/dsmfs@.service
INSTALLED = $(PROGRAM) $(HELPER) $(HEADER) $(MANUAL) $(HELPERMANUAL) $(LICENSECOPY) $(BASHSCRIPT) $(ZSHSCRIPT) $(FISHSCRIPT) $(UNIT)
PUT = install -D -m 644

# What is built is installed as it is: root need not have Go.
.PHONY: install
install:
	@test -x $(BINARY) || $(MAKE) build
	@install -D -m 755 $(BINARY) '$(DESTDIR)$(PROGRAM)'
	@mkdir -p '$(DESTDIR)$(HELPERDIR)'
	@ln -sf '$(PROGRAM)' '$(DESTDIR)$(HELPER)'
	@$(PUT) include/dsmfs.h '$(DESTDIR)$(HEADER)'
	@$(PUT) LICENSE '$(DESTDIR)$(LICENSECOPY)'
	@$(BINARY) manual | $(PUT) /dev/stdin '$(DESTDIR)$(MANUAL)'
	@echo '.so man8/dsmfs.8' | $(PUT) /dev/stdin '$(DESTDIR)$(HELPERMANUAL)'
	@$(BINARY) completion bash | $(PUT) /dev/stdin '$(DESTDIR)$(BASHSCRIPT)'
	@$(BINARY) completion zsh | $(PUT) /dev/stdin '$(DESTDIR)$(ZSHSCRIPT)'
	@$(BINARY) completion fish | $(PUT) /dev/stdin '$(DESTDIR)$(FISHSCRIPT)'
	@sed 's|@PROGRAM@|$(PROGRAM)|' scripts/dsmfs@.service | $(PUT) /dev/stdin '$(DESTDIR)$(UNIT)'

.PHONY: uninstall
uninstall:
	@rm -f $(foreach f,$(INSTALLED),'$(DESTDIR)$(f)')
	@rmdir '$(DESTDIR)$(dir $(LICENSECOPY))' 2>/dev/null || true

.PHONY: clean
clean:
	@rm -rf bin $(SHIM) .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
