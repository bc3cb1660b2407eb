# Included by the root Makefile.

.PHONY: demo-host
demo-host: build ## Back up, verify, restore and serve a disk on this machine, without Kubernetes: docs/quickstart-host.md as it stands
	hack/deps.sh host
	PATH=$(CURDIR)/build/bin:$$PATH demo/host/run.sh
