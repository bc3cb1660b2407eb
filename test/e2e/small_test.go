//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// namesOf returns the kinds and the names of what a list holds.
func namesOf(list client.ObjectList) (names []string) {
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		names = append(names, fmt.Sprintf("%T %s", item, item.(client.Object).GetName()))
		return nil
	})
	return names
}
