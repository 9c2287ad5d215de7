package main

import (
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// statusReport is the output of status.
type statusReport struct {
	Mount   string            `json:"mount"`
	PID     int               `json:"pid"`
	Version string            `json:"version"`
	Name    string            `json:"name"`
	ID      string            `json:"id"`
	Addr    string            `json:"addr"`
	Cluster string            `json:"cluster"`
	Epoch   uint64            `json:"epoch"`
	Leader  string            `json:"leader"` // its name; empty while there is none
	Members int               `json:"members"`
	Memory  int64             `json:"memory"` // in bytes, of the node that has least
	Used    int64             `json:"used"`   // in bytes; full files cannot use these any more
	Config  map[string]string `json:"config"`
	Stats   map[string]string `json:"stats"`

	statOrder []string
}

func statusVerb(p *program, args []string) error {
	return p.report("status", args, func(point, _ string) (report, error) { return lookStatus(point) })
}

func lookStatus(point string) (*statusReport, error) {
	version, err := readControl(point, "version")
	if err != nil {
		return nil, err
	}
	config, err := readFlat(point, "config")
	if err != nil {
		return nil, err
	}
	text, err := readControl(point, "stats")
	if err != nil {
		return nil, err
	}
	members, err := lookMembers(point)
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(point, &fs); err != nil {
		return nil, err
	}
	r := &statusReport{
		Mount: point, Version: strings.TrimSpace(version), Name: config["name"], ID: config["id"], Addr: config["addr"],
		Members: len(members), Memory: int64(fs.Blocks) * fs.Bsize, Used: int64(fs.Blocks-fs.Bfree) * fs.Bsize,
		Config: config, Stats: make(map[string]string),
	}
	for _, p := range parseFlat(text) {
		r.Stats[p.key] = p.value
		r.statOrder = append(r.statOrder, p.key)
	}
	if r.PID, err = strconv.Atoi(config["pid"]); err != nil {
		return nil, err
	}
	if r.Epoch, err = strconv.ParseUint(r.Stats["epoch"], 10, 64); err != nil {
		return nil, err
	}
	r.Cluster = r.Stats["cluster"]
	for _, m := range members {
		if m.Leader {
			r.Leader = m.Name
		}
	}
	return r, nil
}

func (r *statusReport) text(w io.Writer) error {
	leader := r.Leader
	if leader == "" {
		leader = "none: names cannot be changed until the nodes elect one"
	}
	rows := [][]string{
		{"mount", r.Mount},
		{"version", r.Version},
		{"pid", strconv.Itoa(r.PID)},
		{"node", r.Name + " (" + r.ID + ")"},
		{"address", r.Addr},
		{"cluster", r.Cluster},
		{"members", strconv.Itoa(r.Members)},
		{"leader", leader},
		{"memory", formatSize(r.Used) + " used of " + formatSize(r.Memory)},
	}
	for _, k := range r.statOrder {
		if k != "cluster" && k != "leader" {
			rows = append(rows, []string{strings.ReplaceAll(k, "_", " "), r.Stats[k]})
		}
	}
	return table(w, rows)
}
