# The tiers of docs/testing.md, cheapest first.
TIERS := test-unit test-control-plane test-peers test-interop test-image test-box test-e2e

# Their tests sync each blob or file of thousands, which costs nothing in memory, and wait beside that, for processes and deadlines.
TESTS_IN_MEMORY := ./internal/repository/ ./internal/launcher/push/

.PHONY: test-unit
test-unit: ## Unit tests: no root, no cluster
	# The tag is kopia's: a repository's key comes from its password in no time.
	hack/in-memory.sh $(GO) test -tags testing -parallel 4 -timeout 30m $(TESTS_IN_MEMORY)
	$(GO) test -tags testing -timeout 30m $$($(GO) list ./... | grep -vxF "$$($(GO) list $(TESTS_IN_MEMORY))")

.PHONY: test-control-plane
test-control-plane: kube ## Reconcilers and admission against a real kube-apiserver and etcd
	# They wait for each other's controllers most of the time.
	$(GO) test -tags controlplane -p 2 -parallel 6 -timeout 15m -run "$$(hack/tests-with-tag.sh controlplane)" $$(hack/packages-with-tag.sh controlplane)

.PHONY: test-interop
test-interop: kube launcher-root guest ## Overlays, checkpoints, backup jobs and mounts against real libvirt, QEMU, guests and kernel (root)
	hack/deps.sh interop
	$(GO) test -tags root -timeout 10m -run "$$(hack/tests-with-tag.sh root)" ./internal/handler/ ./internal/handler/mount/ ./internal/disk/
	$(GO) test -tags root -parallel 8 -run "$$(hack/tests-with-tag.sh root)" -timeout 10m ./internal/repository/
	$(GO) test -tags nbd_interop -timeout 10m -run "$$(hack/tests-with-tag.sh nbd_interop)" $$(hack/packages-with-tag.sh nbd_interop)
	$(GO) test -tags libvirt_dlopen -p 1 -timeout 20m $$(hack/packages-with-tag.sh libvirt_dlopen)

.PHONY: test-peers
test-peers: peers ## The repository against the upstream kopia and a real S3 server, killed and with faults on the wire
	$(GO) test -tags peers -parallel 4 -timeout 15m -run "$$(hack/tests-with-tag.sh peers)" $$(hack/packages-with-tag.sh peers)

.PHONY: test-e2e
test-e2e: box-up install guest ## Real pods, virtual machines and guests on the box; bytes compared
	$(GO) test -tags e2e -count=1 -parallel 2 -timeout 40m ./test/e2e/

.PHONY: test
test: ## Every tier; installs what it needs
	@for tier in $(TIERS); do \
		start=$$(date +%s); $(MAKE) --no-print-directory $$tier || exit 1; \
		echo "==== $$tier passed in $$(( $$(date +%s) - start )) s"; \
	done

.PHONY: demo
demo: box-up install guest ## The main job on a box, told step by step; result in build/demo/result.json
	$(GO) run ./demo -kubeconfig $(KUBECONFIG)

.PHONY: bench
bench: ## Benchmarks against their peers, all parts; build/bench.json
	$(MAKE) --no-print-directory bench-repository # before there is a box, which would take a part of the processors
	$(MAKE) --no-print-directory bench-push

.PHONY: bench-push
bench-push: box-up install guest ## The benchmarks of push backups, on the box
	$(GO) run ./bench -kubeconfig $(KUBECONFIG)

.PHONY: bench-tools
bench-tools: build peers
	hack/deps.sh peers

.PHONY: bench-repository
bench-repository: bench-tools ## The benchmarks that need no box: disks against kopia, restic, borg and qemu-img (BENCH_FLAGS='-only repo-verify')
	$(GO) run ./bench/repository $(BENCH_FLAGS)

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

.PHONY: soak-sessions
soak-sessions:
	VARVE_TEST_SOAK=1 $(GO) test -tags peers -count=1 -v -timeout 150m -run '^(TestGenerations|TestKilled.*|TestEverythingAtOnce.*|TestLong.*|TestNightly.*|TestSession_.*)$$' ./internal/repository/

.PHONY: soak
soak: soak-repository box-up install guest ## The above; then kill components at random while backups run (SOAK_BACKUPS=24, SOAK_SEED=n); every point in time compared
	$(GO) test -tags soak -count=1 -v -timeout 170m ./test/soak/
