# holdfast: `make help` lists what there is.
SHELL       := /bin/bash
.DEFAULT_GOAL := help

VERSION     := $(shell git describe --always --dirty --tags 2>/dev/null || echo dev)
BIN         := bin/holdfast
LINT_VERSION := v2.15.0
export CGO_ENABLED := 0

.PHONY: help build deps deps-test demo test unit lint fuzz bench sim soak-sim soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/holdfast, one static binary
	go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN) ./cmd/holdfast

deps: ## install what the lab needs (Debian packages); says what first
	@scripts/deps

deps-test: ## install what the tests need besides
	@scripts/deps test
	@scripts/majors

demo: deps build ## the main job: measure, pull the plug, write a report (under 5 minutes)
	@scripts/demo

test: deps-test build lint ## lint and all tests (under 15 minutes on two cores)
	@scripts/test

unit: ## only the tests that need neither root nor Postgres
	go test -short ./...

lint: .tools/golangci-lint-$(LINT_VERSION) ## gofmt, vet, staticcheck and more
	.tools/golangci-lint-$(LINT_VERSION) run ./...

.tools/golangci-lint-$(LINT_VERSION):
	@echo "building golangci-lint $(LINT_VERSION) (once, some minutes)"
	@mkdir -p .tools
	GOBIN=$(CURDIR)/.tools/build go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv .tools/build/golangci-lint $@ && rmdir .tools/build

fuzz: ## every decoder of outside bytes, FUZZTIME each (default 30s)
	@scripts/fuzz $${FUZZTIME:-30s}

bench: build ## the disk's speed against a plain file system, and what the load itself costs (a quiet machine)
	HOLDFAST_LONG=1 HOLDFAST_BIN=$(CURDIR)/$(BIN) go test -count=1 -timeout 10m -run 'TestSpeed' -v ./internal/lab/driver
	HOLDFAST_LONG=1 go test -count=1 -timeout 30m -run 'Speed' -v ./internal/disk/...

sim: ## the decision core: 10,000 simulated schedules and every mutation
	go test -count=1 -timeout 30m ./internal/cluster/sim -run 'TestSim|TestKept|TestMutations' -schedules 10000 -v

SCHEDULES ?= 1000000
SEED      ?= 100001
TALLY     ?=
soak-sim: ## a million simulated schedules (hours on two cores); in pieces: SEED=… SCHEDULES=… TALLY=FILE
	go test -count=1 -timeout 24h ./internal/cluster/sim -run TestSim -schedules $(SCHEDULES) -seed $(SEED) -workers 2 -v \
	  -revision $(VERSION) $(if $(TALLY),-tally $(abspath $(TALLY)))

soak: deps-test build ## the long runs: power-off, replication-modes, failover, soak (about three hours)
	@scripts/soak

clean: ## remove what builds and killed runs left
	rm -rf bin
	@if [ -x $(BIN) ]; then $(BIN) lab clean; fi
