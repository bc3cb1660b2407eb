# Programs of others that tests and benchmarks run beside Varve. Included by the root Makefile.

.PHONY: peers
peers: ## Build kopia and versitygw into a cache, as build/peers (minutes the first time)
	test/peers/peers.sh
