//go:build e2e

package e2e

import (
	"context"
	"strconv"
	"strings"
	"testing"
)

type contextT = context.Context

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
