# The four things a newcomer needs: make demo, make test, make lint, make bench. `make` alone lists them.
# The work is in tools/*.sh and CMake; nothing here is needed to use CMake directly.

SHELL := /bin/bash
BUILD := build/release
JOBS ?= $(shell nproc)

.DEFAULT_GOAL := help
.PHONY: help demo build test quick lint format bench install clean setup

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Install what is missing, build, fetch a small model, run it with less memory than its weights
	@tools/demo.sh

setup: ## Install the packages that building and testing need (asks for root, or names them)
	@tools/setup.sh test

build: ## Configure and build the release preset
	@tools/setup.sh build
	@cmake --preset release >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

test: ## Everything: unit tests, sanitizers, fuzzers, lint, install from outside the tree
	@tools/setup.sh test
	@tools/test.sh

quick: build ## Only the release build and its tests
	@ctest --test-dir $(BUILD) -j 2 --output-on-failure

lint: ## clang-format and clang-tidy
	@tools/setup.sh lint
	@tools/lint.sh

format: ## Rewrite the sources with clang-format
	@tools/lint.sh --fix

bench: build ## Kernel microbenchmarks, and tokens per second of the bundled model
	@tools/bench.sh

install: build ## Install the program, library and headers (PREFIX=/usr/local)
	@cmake --install $(BUILD) --prefix $(or $(PREFIX),/usr/local)

clean: ## Remove build/
	rm -rf build
