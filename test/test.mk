# The tiers of docs/testing.md, cheapest first.
TIERS := test-unit test-control-plane test-peers test-interop test-image test-box test-e2e

# Their tests sync each blob or file of thousands, which costs nothing in memory, and wait beside that, for processes and deadlines.
TESTS_IN_MEMORY := ./internal/repository/ ./internal/repository/storage/ ./internal/repository/engine/ ./internal/launcher/push/

# What tests take and which of them fail goes to files for each tier, which `make test` begins anew. GO_TEST is for a tier's
# recipe: a `go test`, with its packages at the end. It runs no vet, which `make lint` runs once with all tags, not once for each tier.
TEST_TIMES := $(CURDIR)/build/test-times
TIERS_TOOL := $(CURDIR)/build/bin/tiers
GO_TEST = $(TIERS_TOOL) run $(TEST_TIMES)/$(@:-always=).tsv $(GO) test -json -vet=off

.PHONY: tiers-tool
tiers-tool:
	@$(GO) build -o $(TIERS_TOOL) ./test/tiers

.PHONY: check
check: lint verify-generate test-layering ## What is checked before any test: the linters, the generated files, the layers of imports

.PHONY: test-layering
test-layering:
	$(GO) test ./internal/layering/

# The packages whose tests are unit tests and nothing else, without those that run in memory. $(1) is grep's -v or nothing: those that
# hack/race-packages.sh names, or the others.
UNIT_PACKAGES = $$($(GO) list ./... | grep -vxF "$$($(GO) list $(TESTS_IN_MEMORY))" | grep $(1) -xF "$$(hack/race-packages.sh)")

.PHONY: test-unit
test-unit: tiers-tool ## Unit tests: no root, no cluster; with the race detector where it is cheap
	hack/deps.sh build # the race detector needs a C compiler
	# The tag is kopia's: a repository's key comes from its password in no time.
	$(GO) build -tags testing $(TESTS_IN_MEMORY)
	hack/in-memory.sh $(GO_TEST) -tags testing -parallel 4 -timeout 30m $(filter-out $(RACE_IN_MEMORY),$(TESTS_IN_MEMORY))
	hack/in-memory.sh $(GO_TEST) -race -tags testing -timeout 30m $(RACE_IN_MEMORY)
	$(GO_TEST) -race -tags testing -timeout 30m $(call UNIT_PACKAGES,)
	$(GO_TEST) -tags testing -timeout 30m $(call UNIT_PACKAGES,-v)

# Of the packages whose tests run in memory, the one that has the race detector in every run.
RACE_IN_MEMORY := ./internal/launcher/push/

.PHONY: test-race
test-race: tiers-tool ## The unit tests of all other packages with the race detector: half an hour
	hack/deps.sh build
	hack/in-memory.sh $(GO_TEST) -race -tags testing -parallel 4 -timeout 60m $(filter-out $(RACE_IN_MEMORY),$(TESTS_IN_MEMORY))
	$(GO_TEST) -race -tags testing -timeout 60m $(call UNIT_PACKAGES,-v)

.PHONY: test-control-plane
test-control-plane: kube peers virtctl velero helm tiers-tool ## Reconcilers and admission against a real kube-apiserver and etcd
	# They wait for each other's controllers most of the time.
	$(GO_TEST) -tags controlplane -p 2 -parallel 6 -timeout 30m -run "$$(hack/tests-with-tag.sh controlplane)" $$(hack/packages-with-tag.sh controlplane)

.PHONY: test-interop
test-interop: kube launcher-root guest csi-sanity tiers-tool ## Overlays, checkpoints, backup jobs and mounts against real libvirt, QEMU, guests and kernel (root)
	hack/deps.sh interop bench
	hack/passed.sh $@ root $(INTEROP_INPUTS) './bench/image ./internal/cron ./internal/handler ./internal/handler/machine/mount ./internal/disk ./internal/moverpod ./internal/store/agent ./internal/store/csi ./internal/store/loop ./internal/store/reflink ./internal/store/source' \
		$(GO_TEST) -tags root -timeout 20m -run "$$(hack/tests-with-tag.sh root)"
	hack/passed.sh $@ root $(INTEROP_INPUTS) ./internal/repository $(GO_TEST) -tags root -parallel 8 -timeout 20m -run "$$(hack/tests-with-tag.sh root)"
	hack/passed.sh $@ nbd_interop $(INTEROP_INPUTS) "$$(hack/packages-with-tag.sh nbd_interop)" \
		$(GO_TEST) -tags nbd_interop -timeout 20m -run "$$(hack/tests-with-tag.sh nbd_interop)"
	hack/passed.sh $@ libvirt_dlopen $(INTEROP_INPUTS) "$$(hack/packages-with-tag.sh libvirt_dlopen)" $(GO_TEST) -tags libvirt_dlopen -p 1 -timeout 20m

# What the tests depend on beside the sources: versions, how they are run, the libvirt and the guests that are built, and what scripts run.
INTEROP_INPUTS := 'go.mod go.sum hack test/test.mk images box/go.mod box/kube.sh'
PEERS_INPUTS := 'go.mod go.sum hack test/test.mk test/peers'

.PHONY: test-peers
test-peers: peers tiers-tool ## The repository against the upstream kopia and a real S3 server, killed and with faults on the wire; Harvester's types
	cd test/compat/harvester && $(GO_TEST) -timeout 20m ./...
	hack/passed.sh $@ peers $(PEERS_INPUTS) "$$(hack/packages-with-tag.sh peers)" \
		$(GO_TEST) -tags peers -parallel 4 -timeout 30m -run "$$(hack/tests-with-tag.sh peers)"

.PHONY: test-e2e
test-e2e: NODES = 2
test-e2e: box-s3 install guest virtctl velero chart tiers-tool ## Real pods, virtual machines and guests on the box; bytes compared
	hack/deps.sh interop # a client of pull backups writes qcow2 with qemu-storage-daemon
	$(GO_TEST) -tags e2e -count=1 -parallel 2 -timeout 60m ./test/e2e/

# The box of test-beside, beside any that runs: KubeVirt's kinds and those of Varve's own runtime have the same names.
BESIDE_BOX := /var/lib/varve-box-beside
BESIDE = VARVE_BOX_DIR=$(BESIDE_BOX) KUBECONFIG=$(BESIDE_BOX)/kubeconfig
BESIDE_INPUTS := 'go.mod go.sum api box cmd deploy hack/deps.sh images internal test/beside test/checkout test/gen \
	test/guestagent test/kubevirt test/lab test/peers test/port test/process test/s3 test/test.mk test/verdict test/wait'

.PHONY: test-beside test-beside-always
test-beside: kube box peers virtctl kubevirt-images images
test-beside: tiers-tool ## Varve beside upstream's KubeVirt in a box of its own, unless it passed here as it is (FRESH=1; KUBEVIRT=kubevirt-1.9)
	hack/deps.sh box
	hack/once.sh $@$(KUBEVIRT:kubevirt%=%) $(BESIDE_INPUTS) $(MAKE) --no-print-directory test-beside-always

test-beside-always: tiers-tool
	trap '$(BOX_BIN) down --dir $(BESIDE_BOX)' EXIT; set -e; export $(BESIDE); \
	$(BOX_BIN) down; $(BOX_BIN) up --bridge varve-beside --nodes=1; $(BOX_BIN) s3 up; \
	$(BOX_BIN) load build/kubevirt.tar; \
	{ $(BOX_BIN) load $(addprefix build/images/,varve-guest-test.tar varve.tar varve-launcher.tar); \
		$(GO) run ./deploy/render; $(GO) test -tags beside -c -o /dev/null ./test/beside/; } & ready=$$!; \
	KUBECTL=$(KUBECTL) test/kubevirt/up.sh; wait $$ready; \
	KUBECTL=$(KUBECTL) deploy/install.sh build/deploy; \
	$(GO_TEST) -tags beside -count=1 -parallel 3 -timeout 20m ./test/beside/

# Two lanes share the processors: guests of the end-to-end and interop tests boot and wait while the other tiers compute. What both lanes need is there before.
LANES := 'test-box test-e2e test-interop test-image' 'test-unit test-control-plane test-peers'

ifeq ($(origin TIERS),file)
test: kube peers csi-sanity virtctl velero helm build image-tool box guest launcher-root
endif

.PHONY: test
test: tiers-tool ## Every tier; installs what it needs; then the time of each, and the slowest tests (TIERS="test-unit …": these alone)
	@rm -rf $(TEST_TIMES) build/test/flaky; mkdir -p $(TEST_TIMES)
ifeq ($(origin TIERS),file)
	@$(MAKE) --no-print-directory check
	hack/deps.sh box build guest image interop bench
	@status=0; VARVE_TEST_AGAIN=1 hack/lanes.sh $(LANES) || status=1; $(TIERS_TOOL) conclude $(TEST_TIMES) $(TIERS) && exit $$status
else
	@status=0; VARVE_TEST_AGAIN=1 hack/lanes.sh '$(TIERS)' || status=1; $(TIERS_TOOL) conclude $(TEST_TIMES) $(TIERS) && exit $$status
endif

.PHONY: demo
demo: box-s3 install guest ## The main job on a box, told step by step; result in build/demo/result.json
	$(GO) run ./demo -kubeconfig $(KUBECONFIG)

.PHONY: bench
bench: ## Benchmarks against their peers, all parts; build/bench.json
	$(MAKE) --no-print-directory bench-repository # before there is a box, which would take a part of the processors
	$(MAKE) --no-print-directory bench-pull
	$(MAKE) --no-print-directory bench-image
	$(MAKE) --no-print-directory bench-guest
	$(MAKE) --no-print-directory bench-control
	$(MAKE) --no-print-directory bench-push
	$(MAKE) --no-print-directory bench-move

.PHONY: bench-control
bench-control: kube build ## What the controller costs with 1,000 schedules and nothing to do; needs no box
	$(GO) run ./bench/control $(BENCH_FLAGS)

.PHONY: bench-push
bench-push: box-up install guest ## The benchmarks of push backups, on the box
	$(GO) run ./bench -kubeconfig $(KUBECONFIG)

.PHONY: bench-move
bench-move: box-s3 install guest ## The data mover against Velero's way, on the box and its S3 service (BENCH_FLAGS='-only move-full')
	$(GO) run ./bench/move -kubeconfig $(KUBECONFIG) -box-dir $(VARVE_BOX_DIR) $(BENCH_FLAGS)

# The box of bench-beside: one after the other, as KubeVirt's kinds and those of Varve's own runtime have the same names.
BENCH_BESIDE_BOX := /var/lib/varve-box-bench-beside
BENCH_BESIDE = VARVE_BOX_DIR=$(BENCH_BESIDE_BOX) KUBECONFIG=$(BENCH_BESIDE_BOX)/kubeconfig KUBECTL=$(KUBECTL)

.PHONY: bench-beside
bench-beside: kube box peers kubevirt-images images guest ## Varve's own runtime against KubeVirt, each in a box of its own (BENCH_FLAGS='-rounds 2')
	hack/deps.sh box
	trap '$(BOX_BIN) down --dir $(BENCH_BESIDE_BOX)' EXIT; set -e; export $(BENCH_BESIDE); $(GO) run ./deploy/render; \
	for runtime in varve kubevirt; do \
		$(BOX_BIN) down; $(BOX_BIN) up --bridge varve-bbeside --nodes=1; $(BOX_BIN) s3 up; \
		$(BOX_BIN) load $(addprefix build/images/,varve-guest-test.tar varve.tar varve-launcher.tar); \
		if [ $$runtime = varve ]; then deploy/install.sh build/deploy deploy/box/kubevirt.yaml; \
		else $(BOX_BIN) load build/kubevirt.tar; test/kubevirt/up.sh; deploy/install.sh build/deploy; fi; \
		$(GO) run ./bench/beside -runtime $$runtime $(BENCH_FLAGS); \
	done; $(GO) run ./bench/beside -report

.PHONY: bench-tools
bench-tools: build peers
	hack/deps.sh peers

.PHONY: bench-repository
bench-repository: bench-tools ## The benchmarks that need no box: disks against kopia, restic, borg and qemu-img (BENCH_FLAGS='-only repo-verify')
	$(GO) run ./bench/repository $(BENCH_FLAGS)

.PHONY: bench-pull
bench-pull: ## Pull backups against nbdcopy on the same disk; needs no box (BENCH_FLAGS='-only pull-stream -profile DIR')
	hack/deps.sh host interop
	$(GO) run ./bench/pull $(BENCH_FLAGS)

.PHONY: bench-image
bench-image: ## Images and their clones on two disks against qemu-img, cp and plain files; root, no box (BENCH_FLAGS='-only image-sync')
	hack/deps.sh bench
	$(GO) run ./bench/image $(BENCH_FLAGS)

.PHONY: bench-guest
bench-guest: launcher-root guest ## What a pull costs the writes of a real guest (root)
	$(GO) run ./bench/pull -guest $(BENCH_FLAGS)

.PHONY: bench-blocks
bench-blocks: bench-tools ## What the block sizes of disks cost; build/bench-blocks.json
	$(GO) run ./bench/repository -blocks 256k,1m,4m $(BENCH_FLAGS)

.PHONY: soak-repository
soak-repository: peers ## 200 generations of disks, deaths at every blob, backups of up to a month, and everything at once for minutes (VARVE_TEST_SEED=n)
	$(MAKE) -j 2 soak-bases soak-sessions

# Both keep one core busy for most of their time.
.PHONY: soak-bases
soak-bases:
	VARVE_TEST_SOAK=1 $(GO) test -tags testing -count=1 -timeout 90m -run '^TestBase_random' ./internal/repository/ -rapid.checks=60 -rapid.steps=40
	VARVE_TEST_SOAK=1 $(GO) test -tags testing -count=1 -timeout 90m -run '^TestLosses_published' ./internal/repository/ -rapid.checks=500 -rapid.steps=25

.PHONY: soak-sessions
soak-sessions:
	VARVE_TEST_SOAK=1 $(GO) test -tags peers -count=1 -v -timeout 150m -run '^(TestGenerations|TestKilled.*|TestEverythingAtOnce.*|TestLong.*|TestNightly.*|TestSession_.*)$$' ./internal/repository/

.PHONY: soak
soak: soak-repository soak-box soak-schedules ## The three others, one after the other

# Kubernetes and the peers are built before it, and do not stall.
.PHONY: soak-stalls
soak-stalls: TIERS = test-unit test-control-plane test-peers test-interop
soak-stalls: STALLS_COUNT = 1
soak-stalls: kube peers virtctl velero helm launcher-root guest ## The tests that need no box, in programs that stand still at random as on a busy machine (TIERS="test-unit", STALLS_COUNT=1)
	GOFLAGS="-count=$(STALLS_COUNT) $(GOFLAGS)" $(MAKE) --no-print-directory test GO='$(CURDIR)/hack/stalls.sh go' TIERS="$(TIERS)"

.PHONY: soak-box
soak-box: NODES = 2
soak-box: box-s3 install guest ## Kill components at random while backups, movers and images run (SOAK_BACKUPS=24, SOAK_MOVES=10, SOAK_IMAGES=20, SOAK_LEADER=20, SOAK_OUTAGE=10, SOAK_SEED=n); every point in time compared
	$(GO) test -tags soak -count=1 -v -timeout 170m -skip '^TestSchedules_' ./test/soak/

.PHONY: soak-schedules
soak-schedules: NODES = 2
soak-schedules: box-s3 install guest ## A day of schedules in SOAK_SCHEDULES (20) minutes, with kills and outages, and as long to compare every backup
	$(GO) test -tags soak -count=1 -v -timeout 170m -run '^TestSchedules_' ./test/soak/
