package chaos

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/dsmfs/dsmfs/integration/harness"
)

var (
	seedFlag      = flag.Uint64("seed", 0, "seed of the first round; 0 draws one")
	forFlag       = flag.Duration("for", 3*time.Minute, "begin no further round after this time")
	workloadsFlag = flag.String("workloads", "", "run these, separated by commas, instead of some that are drawn")
	faultsFlag    = flag.String("faults", "", "inject these kinds, separated by commas, instead of all; none: no fault")
	copiesFlag    = flag.Int("copies", 0, "user.dsm.replicas of all files; 0: as drawn")
	tallyFlag     = flag.String("tally", "", "file for what all rounds showed")
	keepFlag      = flag.String("keep", "", "directory for the histories of all rounds; those of a round that fails are always kept")
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "chaos")) }
