#!/bin/sh
# Prints the packages whose unit tests need neither kopia nor a client of Kubernetes. They run with the race detector every
# time: others take it minutes to compile, and `make test-race` runs them.
set -eu
go list -tags testing -test -f '{{$p := .ImportPath}}{{range .Deps}}{{$p}} {{.}}{{"\n"}}{{end}}' ./... |
	awk '$1 !~ /\.test$/ { next }
		{ name = $1; sub(/\.test$/, "", name); all[name] }
		$2 ~ "^(github.com/kopia/kopia|k8s.io/client-go|sigs.k8s.io/controller-runtime)(/|$)" { heavy[name] }
		END { for (name in all) if (!(name in heavy)) print name }' | sort
