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

.PHONY: helm
helm: ## Build Helm into a cache, as build/helm (2 or 3 minutes the first time)
	test/peers/peers.sh helm helm=helm.sh/helm/v3

.PHONY: velero
velero: ## Build Velero, its plugin for S3 and its CRDs into a cache, as build/velero (10 to 20 minutes the first time)
	test/peers/peers.sh velero velero=github.com/vmware-tanzu/velero

# The version of KubeVirt, by the folder of its module: kubevirt has 1.8.2.
KUBEVIRT := kubevirt

.PHONY: kubevirt
kubevirt: image-tool ## Build upstream's KubeVirt into a cache, as build/kubevirt (10 to 20 minutes the first time; KUBEVIRT=kubevirt-1.9)
	hack/deps.sh build image
	$(IMAGE) libnbd
	test/peers/peers.sh kubevirt $(KUBEVIRT)=kubevirt.io/kubevirt

.PHONY: test-libnbd
test-libnbd: image-tool ## Test the calls of libnbd that KubeVirt makes against a server of nbdkit
	hack/deps.sh build image interop
	$(IMAGE) libnbd
	test/peers/kubevirt/libnbd/test.sh
