package integration

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/dsmfs/dsmfs/integration/harness"
)

// report runs a verb with --output json and decodes what it prints.
func report[T any](t *testing.T, n *harness.Node, verb string) T {
	t.Helper()
	res := n.CLI(verb, n.Mount, "--output", "json")
	if res.Err != nil {
		t.Fatalf("%s: dsmfs %s: %v\n%s%s", n.Name, verb, res.Err, res.Stdout, res.Stderr)
	}
	var v T
	if err := json.Unmarshal([]byte(res.Stdout), &v); err != nil {
		t.Fatalf("%s: dsmfs %s --output json: %v in\n%s", n.Name, verb, err, res.Stdout)
	}
	return v
}

// row is one object of a report. Only the fields that a test asks for matter here.
type row map[string]any

func (r row) text(key string) string { return fmt.Sprint(r[key]) }

// leader returns the node that leads the consensus.
func leader(t *testing.T, c *harness.Cluster) *harness.Node {
	t.Helper()
	for _, n := range c.Nodes() {
		if !n.Running() {
			continue
		}
		name := report[row](t, n, "status").text("leader")
		for _, m := range c.Nodes() {
			if m.Name == name {
				return m
			}
		}
	}
	t.Fatal("no node knows the leader by name")
	return nil
}

// backups is what the home of an area says of those that have copies.
var backups = regexp.MustCompile(` (backups|filling)=[^ \n]*`)

// home returns the names of the nodes that are home of some of an area's extents.
func home(t *testing.T, n *harness.Node, cl *harness.Client, area string) string {
	t.Helper()
	ids := backups.ReplaceAllString(cl.Control("areas/"+area+"/home"), "")
	for _, m := range report[[]row](t, n, "members") {
		ids = strings.ReplaceAll(ids, m.text("id"), m.text("name"))
	}
	return strings.TrimSpace(ids)
}
