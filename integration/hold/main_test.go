// Package hold_test kills the daemons of a mount with --hold while programs use it.
package hold_test

import (
	"os"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == programWord {
		os.Exit(program(os.Args[2], os.Args[3]))
	}
	os.Exit(harness.Main(m, "hold"))
}
