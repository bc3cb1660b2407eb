# Installing Varve into a cluster, and what is generated. Included by the Makefile of the repository's root.

KUBECTL ?= $(CURDIR)/build/kube/bin/kubectl
CONTROLLER_GEN := $(GO) run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0
PROTO := internal/launcher/launcherpb
STORE_PROTO := internal/store/storepb
# The packages that only Varve's own runtime has: see runtimeParts in internal/controller/run.go.
RUNTIME_ONLY := /controller/(machine|backup|datamove/machinegroup|keep/requeststart)(/|$$)

.PHONY: chart install uninstall generate verify-generate docs

install: images box ## Install Varve into the box, or bring it up to date, and wait until it runs
	$(BOX_BIN) load build/images/*.tar
	$(GO) run ./deploy/render
	KUBECTL=$(KUBECTL) deploy/install.sh build/deploy deploy/box/kubevirt.yaml

chart: images helm ## Make the Helm chart of both profiles, build/chart/varve-VERSION.tgz
	rm -rf build/chart
	$(GO) run ./deploy/render -chart build/chart/varve -version '$(VERSION)'
	build/helm/bin/helm lint --strict --namespace varve --kube-version 1.30.0 build/chart/varve
	build/helm/bin/helm package --destination build/chart build/chart/varve

uninstall: ## Remove Varve, its kinds and all their objects from the box; claims and backups on them stay
	KUBECTL=$(KUBECTL) deploy/uninstall.sh

generate: ## Generate deepcopy, CRDs, RBAC, protobuf code, the operator's alerts and the tables of docs/
	hack/deps.sh generate
	$(CONTROLLER_GEN) object:headerFile=/dev/null crd paths=./api/... output:crd:dir=deploy/crd
	# The condition Done of a backup has a sentence as its reason, as in KubeVirt 1.8.
	sed -i '/pattern: ^\[A-Za-z\](\[A-Za-z0-9_,:\]/d' deploy/crd/backup.kubevirt.io_virtualmachinebackups.yaml
	$(CONTROLLER_GEN) rbac:roleName=varve-controller paths="./internal/controller/...;./internal/admission/..." output:rbac:dir=deploy/rbac/controller
	# Beside KubeVirt, whatever runs machines is not there.
	$(CONTROLLER_GEN) rbac:roleName=varve-controller output:rbac:dir=deploy/beside \
		paths="$$($(GO) list ./internal/controller/... | grep -vE '$(RUNTIME_ONLY)' | paste -sd ';')"
	$(CONTROLLER_GEN) rbac:roleName=varve-handler paths=./internal/handler/... output:rbac:dir=deploy/rbac/handler
	$(CONTROLLER_GEN) rbac:roleName=varve-store paths=./internal/store/... output:rbac:dir=deploy/store
	GOBIN=$(CURDIR)/build/bin $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
	GOBIN=$(CURDIR)/build/bin $(GO) install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.1
	PATH=$(CURDIR)/build/bin:$$PATH protoc -I $(PROTO) --go_out=$(PROTO) --go_opt=paths=source_relative \
		--go-grpc_out=$(PROTO) --go-grpc_opt=paths=source_relative launcher.proto
	PATH=$(CURDIR)/build/bin:$$PATH protoc -I $(STORE_PROTO) --go_out=$(STORE_PROTO) --go_opt=paths=source_relative \
		--go-grpc_out=$(STORE_PROTO) --go-grpc_opt=paths=source_relative store.proto
	$(GO) test ./internal/cli -run '^TestReference$$' -update
	$(GO) test ./deploy -run '^TestOperatorManifest_hasTheSameRules$$' -update
	$(GO) test ./docs -run '^Test(API|Metrics)Reference$$|^TestDataMovers_showsTheExampleAsItIs$$' -update
	$(GO) test ./internal/layering -run '^TestArchitecture_listsEveryPackage$$' -update

verify-generate: ## Fail when make generate would change something
	deploy/verify-generate.sh
