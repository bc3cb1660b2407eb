# The box: a real Kubernetes on this machine. See box/README.md. Included by the Makefile of the repository's root.

NODES ?= 1
BOX_BIN := build/bin/box
# The same flags everywhere, and never ./... here: other flags, or cmd/kube, compile all of Kubernetes once more.
BOX_GO := CGO_ENABLED=0 go
BOX_FLAGS := -trimpath -buildvcs=false

.PHONY: kube box box-up box-s3 box-kubevirt box-down box-status test-box test-box-always

kube: ## build Kubernetes into a cache, as build/kube (minutes the first time)
	box/kube.sh

box:
	cd box && $(BOX_GO) build $(BOX_FLAGS) -o ../build/bin/ ./cmd/box ./cmd/box-pause

box-up: kube box ## bring the box up, or repair it (NODES=1 or 2)
	hack/deps.sh box
	$(BOX_BIN) up --nodes=$(NODES)

box-s3: box-up peers ## bring the S3 service beside the box up, or repair it; its address and keys are in s3.json of the box's directory
	$(BOX_BIN) s3 up

# Not a box with Varve: both bring the kinds of KubeVirt's groups.
box-kubevirt: box-up kubevirt-images ## bring up or repair a box with upstream's KubeVirt, and wait until it is Deployed
	$(BOX_BIN) load build/kubevirt.tar build/images/varve-guest-test.tar
	KUBECTL=$(KUBECTL) test/kubevirt/up.sh

box-down: box ## remove the box and every trace of it
	$(BOX_BIN) down
	$(BOX_BIN) down --dir $(VARVE_BOX_DIR)-second # of an end-to-end test that was killed

box-status: box ## show what runs in the box
	$(BOX_BIN) status

test-box: kube box peers csi-sanity ## test the box itself, unless it passed here as it is (FRESH=1: in any case)
	hack/deps.sh box
	hack/once.sh test-box 'box hack/deps.sh test/peers/versitygw test/peers/csi-sanity' $(MAKE) --no-print-directory test-box-always

test-box-always: tiers-tool ## test the box itself, in a box of its own beside any that runs (root, minutes)
	cd box && CGO_ENABLED=0 $(GO_TEST) $(BOX_FLAGS) ./cmd/box ./internal/...
	cd box && CGO_ENABLED=0 $(GO_TEST) $(BOX_FLAGS) -tags=box -count=1 -timeout=30m ./e2e
