# Programs of others that tests and benchmarks run beside Varve. Included by the root Makefile.

.PHONY: peers
peers: ## Build kopia and versitygw into a cache, as build/peers (minutes the first time)
	test/peers/peers.sh peers kopia=github.com/kopia/kopia versitygw=github.com/versity/versitygw

.PHONY: csi-sanity
csi-sanity: ## Build the conformance tests of CSI drivers into a cache, as build/csi-sanity
	test/peers/peers.sh csi-sanity csi-sanity=github.com/kubernetes-csi/csi-test/v5

.PHONY: virtctl
virtctl: ## Build upstream's virtctl into a cache, as build/virtctl (2 or 3 minutes the first time)
	test/peers/peers.sh virtctl virtctl=kubevirt.io/kubevirt

.PHONY: velero
velero: ## Build Velero, its plugin for S3 and its CRDs into a cache, as build/velero (10 to 20 minutes the first time)
	test/peers/peers.sh velero velero=github.com/vmware-tanzu/velero
