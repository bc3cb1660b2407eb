# Guests for tests and demo. Included by the root Makefile; images/images.mk builds the tool.

.PHONY: guest
guest: image-tool ## Build the guests of tests and demo into build/guest
	hack/deps.sh image guest
	$(IMAGE) $(IMAGE_FLAGS) guest
