# Varve. `make help` lists the targets. Everything that is built goes to build/ (ignored) or to a cache by content
# under the user's cache directory.
SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Tests, tools and what is built share the packages that they compile.
override GOFLAGS := $(filter-out -trimpath,$(or $(GOFLAGS),$(shell $(GO) env GOFLAGS))) -trimpath
export GOFLAGS
GOFLAGS_VARVE := -ldflags '-s -w -X github.com/varvebackup/varve/internal/version.Version=$(VERSION)'
export VARVE_BOX_DIR ?= /var/lib/varve-box
export KUBECONFIG ?= $(VARVE_BOX_DIR)/kubeconfig
export KUBEBUILDER_ASSETS ?= $(CURDIR)/build/kube/bin

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build varve (static) and varve-launcher (cgo) into build/bin
	hack/deps.sh build
	CGO_ENABLED=0 $(GO) build $(GOFLAGS_VARVE) -o build/bin/varve ./cmd/varve
	CGO_ENABLED=1 $(GO) build $(GOFLAGS_VARVE) -tags libvirt_dlopen -o build/bin/varve-launcher ./cmd/varve-launcher
	ln -sf varve build/bin/kubectl-varve

PREFIX ?= /usr/local
.PHONY: install-cli
install-cli: ## Install build/bin/varve with its completions and manual pages under PREFIX (default /usr/local)
	install -D -m 755 build/bin/varve $(DESTDIR)$(PREFIX)/bin/varve
	ln -sf varve $(DESTDIR)$(PREFIX)/bin/kubectl-varve
	printf '#!/bin/sh\nexec kubectl-varve __complete "$$@"\n' > $(DESTDIR)$(PREFIX)/bin/kubectl_complete-varve
	chmod 755 $(DESTDIR)$(PREFIX)/bin/kubectl_complete-varve
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	build/bin/varve completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/varve
	build/bin/varve completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_varve
	build/bin/varve completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/varve.fish
	build/bin/varve man-pages $(DESTDIR)$(PREFIX)/share/man/man1
	echo '.so man1/varve.1' > $(DESTDIR)$(PREFIX)/share/man/man1/kubectl-varve.1

include box/box.mk demo/host/host.mk deploy/deploy.mk hack/lint.mk images/guest/guest.mk images/images.mk test/peers/peers.mk test/test.mk
