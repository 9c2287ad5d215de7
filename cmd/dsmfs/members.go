package main

import (
	"io"
	"strconv"
	"strings"
)

// memberRow is a node in the output of members.
type memberRow struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Addr    string `json:"addr"`
	State   string `json:"state"`
	Voter   bool   `json:"voter"`
	Leader  bool   `json:"leader"`
	Leaving bool   `json:"leaving"`
	Self    bool   `json:"self"`
	Memory  int64  `json:"memory"`
}

type memberRows []memberRow

func membersVerb(p *program, args []string) error {
	return p.report("members", args, func(point, _ string) (report, error) { return lookMembers(point) })
}

func lookMembers(point string) (memberRows, error) {
	text, err := readControl(point, "members")
	if err != nil {
		return nil, err
	}
	config, err := readFlat(point, "config")
	if err != nil {
		return nil, err
	}
	stats, err := readFlat(point, "stats")
	if err != nil {
		return nil, err
	}
	return parseMembers(text, config["id"], stats["leader"])
}

// parseMembers reads the control file members.
func parseMembers(text, self, leader string) (memberRows, error) {
	lines, err := parseNested(text)
	if err != nil {
		return nil, err
	}
	rows := memberRows{}
	for _, l := range lines {
		memory, err := strconv.ParseInt(l.values["budget"], 10, 64)
		if err != nil {
			return nil, err
		}
		rows = append(rows, memberRow{
			ID: l.key, Name: l.values["name"], Addr: l.values["addr"], State: l.values["state"],
			Voter: l.values["voter"] == "1", Leaving: l.values["leaving"] == "1",
			Leader: l.key == leader, Self: l.key == self, Memory: memory,
		})
	}
	return rows, nil
}

// text prints the nodes by name, with any special role.
func (m memberRows) text(w io.Writer) error {
	rows := [][]string{{"NAME", "ID", "ADDRESS", "STATE", "MEMORY", "ROLE"}}
	for _, r := range m {
		var role []string
		for _, x := range []struct {
			is   bool
			word string
		}{{r.Self, "this node"}, {r.Leader, "leader"}, {r.Voter && !r.Leader, "voter"}, {r.Leaving, "leaving"}} {
			if x.is {
				role = append(role, x.word)
			}
		}
		rows = append(rows, []string{r.Name, r.ID, r.Addr, r.State, formatSize(r.Memory), strings.Join(role, ", ")})
	}
	return table(w, rows)
}
