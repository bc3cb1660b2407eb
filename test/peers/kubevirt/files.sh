#!/bin/sh
# Adds what is not a Go program to the directory of KubeVirt's build: the program container-disk, virt-launcher's
# configuration below files/, the manifest kubevirt.yaml, and the file version. peers.sh runs it in this module.
# Usage: files.sh DIRECTORY
set -eu

out=$1
module=$(go list -m -f '{{.Dir}}' kubevirt.io/kubevirt)
version=$(go list -m -f '{{.Version}}' kubevirt.io/kubevirt)
printf '%s\n' "$version" >"$out/version"

gcc -O2 -static -o "$out/bin/container-disk" "$module/cmd/container-disk-v2alpha/main.c"

launcher=$module/cmd/virt-launcher
install -D -m 644 -t "$out/files/etc" "$launcher/nsswitch.conf"
install -D -m 644 -t "$out/files/etc/libvirt" "$launcher/qemu.conf" "$launcher/virtqemud.conf"
install -D -m 755 -t "$out/files/etc/libvirt/hooks" "$launcher/qemu"
install -D -m 755 -t "$out/files/usr/bin" "$launcher/node-labeller/node-labeller.sh"

# The parts of the manifest are templates too, so upstream's program runs twice: it joins the parts, then fills them in.
templator=$out/bin/manifest-templator
"$templator" --process-files --generated-manifests-dir "$module/manifests/generated" \
	--input-file "$module/manifests/release/kubevirt-operator.yaml.in" >"$out/kubevirt.yaml.in"
"$templator" --process-vars --namespace kubevirt --container-prefix varve.local --container-tag "$version" \
	--image-pull-policy Never --kubevirt-logo-path /dev/null --input-file "$out/kubevirt.yaml.in" >"$out/kubevirt.yaml"
sed -i '/^  replicas: 2$/s/2/1/' "$out/kubevirt.yaml" # a second operator would only wait for the first one
rm "$out/kubevirt.yaml.in" "$templator"
