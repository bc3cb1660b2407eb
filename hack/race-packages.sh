#!/bin/sh
# Prints the packages whose unit tests have the race detector every time: those that need neither kopia nor a client of Kubernetes,
# which it takes minutes to compile, and that do not compare hundreds of megabytes byte by byte, which takes the detector
# minutes on a busy machine. `make test-race` runs all others.
set -eu
slow='internal/collection internal/disk internal/export/endpoint internal/export/nbdvolume internal/export/server internal/export/stream'
go list -tags testing -test -f '{{$p := .ImportPath}}{{range .Deps}}{{$p}} {{.}}{{"\n"}}{{end}}' ./... |
	awk -v slow="$slow" 'BEGIN { n = split(slow, names); for (i = 1; i <= n; i++) heavy["github.com/varvebackup/varve/" names[i]] }
		$1 !~ /\.test$/ { next }
		{ name = $1; sub(/\.test$/, "", name); all[name] }
		$2 ~ "^(github.com/kopia/kopia|k8s.io/client-go|sigs.k8s.io/controller-runtime)(/|$)" { heavy[name] }
		END { for (name in all) if (!(name in heavy)) print name }' | sort
