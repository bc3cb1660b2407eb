# Style that a machine can hold. The list and its reasons are in .golangci.yml.

GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.10.1
LINT_BIN := $(CURDIR)/build/bin/golangci-lint
# Without cmd/kube, which is all of Kubernetes, and with the flags of box.mk: others compile its libraries once more.
LINT_BOX := ./cmd/box ./cmd/box-pause ./cmd/coredns ./internal/... ./e2e/...

.PHONY: lint
lint: ## Run the linters over every module (the first time builds them: minutes)
	@test -x $(LINT_BIN) || GOBIN=$(dir $(LINT_BIN)) GOFLAGS=-buildvcs=false $(GO) install $(GOLANGCI_LINT)
	$(LINT_BIN) run --allow-parallel-runners ./...
	cd box && CGO_ENABLED=0 GOFLAGS='$(BOX_FLAGS)' $(LINT_BIN) run --allow-parallel-runners --config ../.golangci.yml $(LINT_BOX)
	cd images && $(LINT_BIN) run --allow-parallel-runners --config ../.golangci.yml ./...
	cd test/compat/harvester && $(LINT_BIN) run --allow-parallel-runners --config ../../../.golangci.yml ./...
