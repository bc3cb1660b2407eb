//go:build controlplane && !root

package handler_test

import (
	"testing"

	"github.com/varvebackup/varve/test/controlplane"
)

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }
