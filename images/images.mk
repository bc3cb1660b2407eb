# Container images without Docker. Included by the root Makefile, whose target "build" makes the two binaries.

IMAGE := build/bin/image

# FRESH=<word> asks the Debian archive again for all roots, once for each new word: FRESH=$$(date +%F).
FRESH ?=
IMAGE_FLAGS = -varve build/bin/varve -launcher build/bin/varve-launcher $(if $(FRESH),-fresh $(FRESH))

.PHONY: image-tool images kubevirt-images launcher-root test-image test-image-always

# Go decides whether there is anything to compile.
image-tool:
	@CGO_ENABLED=0 go -C images build -trimpath -o ../$(IMAGE) ./cmd/image

images: build image-tool ## Build all container images into build/images
	hack/deps.sh image guest
	$(IMAGE) $(IMAGE_FLAGS) build

kubevirt-images: kubevirt image-tool ## Build the images of upstream's KubeVirt, build/kubevirt.tar, and the test guest
	hack/deps.sh image guest
	$(IMAGE) $(IMAGE_FLAGS) kubevirt
	$(IMAGE) $(IMAGE_FLAGS) build varve-guest-test

launcher-root: image-tool ## Unpack the launcher's root (libvirt and QEMU) as build/launcher-root, for use as a chroot
	hack/deps.sh image
	$(IMAGE) $(IMAGE_FLAGS) root

test-image: tiers-tool ## Test image building, and boot the guests under software emulation, unless it passed here as it is (FRESH=1: in any case)
	hack/deps.sh image guest interop
	hack/once.sh test-image 'images hack/deps.sh' $(MAKE) --no-print-directory test-image-always

test-image-always: tiers-tool
	go -C images vet ./...
	cd images && $(GO_TEST) -timeout 10m ./...
