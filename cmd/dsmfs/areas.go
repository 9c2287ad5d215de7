package main

import (
	"errors"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsmfs/dsmfs/internal/dsm"
)

// areaRow is a file in the output of areas.
type areaRow struct {
	Path     string `json:"path"` // below the mount point
	Size     int64  `json:"size"`
	Mode     string `json:"mode"`
	Merge    string `json:"merge"`
	DType    string `json:"dtype"`
	Version  uint64 `json:"version"`  // 0: nothing has been published
	Resident int64  `json:"resident"` // bytes in the memory of this node

	Replicas  string        `json:"replicas"`
	Placement string        `json:"placement"`
	Staleness string        `json:"staleness"` // the bound, or none
	Homes     []areaHomeRow `json:"homes"`     // none if they may not be read

	Owner    string `json:"owner,omitempty"`    // of a file with mode=versioned: the name of a node, "-" if it has none
	Versions int    `json:"versions,omitempty"` // of such a file: how many can be read on this node
}

// areaHomeRow is a home of a file.
type areaHomeRow struct {
	ID     string `json:"id"`
	Source string `json:"source,omitempty"` // ids of the nodes that are handing their parts of the file over to it
	// Backups are ids of the nodes that have copies of parts of the file that live here, and can take over; Filling those that are getting some.
	Backups string `json:"backups,omitempty"`
	Filling string `json:"filling,omitempty"`
	name    string
}

type areaRows []areaRow

func areasVerb(p *program, args []string) error {
	return p.report("areas", args, func(point, inside string) (report, error) { return lookAreas(point, inside) })
}

// lookAreas walks the tree below a path in the mount. Files that disappear meanwhile are left out.
func lookAreas(point, inside string) (areaRows, error) {
	rows := areaRows{}
	names := make(map[string]string)
	if members, err := lookMembers(point); err == nil { // else ids are shown
		for _, m := range members {
			names[m.ID] = m.Name
		}
	}
	top := filepath.Join(point, inside)
	err := filepath.WalkDir(top, func(path string, d iofs.DirEntry, err error) error {
		if errors.Is(err, iofs.ErrNotExist) && path != top || err == nil && !d.Type().IsRegular() {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, iofs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(point, path)
		if err != nil {
			return err
		}
		row := areaRow{Path: rel, Size: info.Size()}
		row.Resident, row.Versions = figures(point, rel)
		row.Mode, row.Merge, row.DType = attribute(path, "mode"), attribute(path, "merge"), attribute(path, "dtype")
		row.Version, _ = strconv.ParseUint(attribute(path, "version"), 10, 64) // 0 if it may not be read
		row.Replicas = attribute(path, "replicas")
		row.Placement, row.Staleness = attribute(path, "placement"), attribute(path, "staleness")
		row.Homes = homesOf(path, names)
		if row.Mode == dsm.ModeVersioned.String() {
			row.Owner = attribute(path, "owner")
		}
		rows = append(rows, row)
		return nil
	})
	return rows, err
}

// homesOf returns the homes of a file. names has the members' names by id.
func homesOf(path string, names map[string]string) []areaHomeRow {
	homes := []areaHomeRow{}
	text, err := readSetting(path, "home")
	if err != nil {
		return homes
	}
	lines, err := parseNested(text)
	if err != nil {
		return homes
	}
	for _, l := range lines {
		h := areaHomeRow{ID: l.key, Source: l.values["source"], Backups: l.values["backups"], Filling: l.values["filling"], name: names[l.key]}
		if h.name == "" {
			h.name = h.ID
		}
		homes = append(homes, h)
	}
	return homes
}

// homeText says where a file lives, by names if those are few.
func (r areaRow) homeText() string {
	moving := false
	for _, h := range r.Homes {
		moving = moving || h.Source != ""
	}
	text := "-"
	switch n := len(r.Homes); {
	case n == 1:
		text = r.Homes[0].name
	case n > 1:
		text = strconv.Itoa(n) + " nodes"
	}
	if moving {
		text += ", moving"
	}
	return text
}

// replicasText says how many copies of the file there are to be, and that there are too few as yet.
func (r areaRow) replicasText() string {
	for _, h := range r.Homes {
		if h.Filling != "" {
			return r.Replicas + ", filling"
		}
	}
	want, err := strconv.Atoi(r.Replicas)
	for _, h := range r.Homes {
		if err == nil && len(strings.FieldsFunc(h.Backups, func(r rune) bool { return r == ',' })) < want-1 {
			return r.Replicas + ", lacking"
		}
	}
	return r.Replicas
}

// attribute returns user.dsm.KEY of a file, "-" if it may not be read.
func attribute(path, key string) string {
	var buf [256]byte
	n, err := unix.Lgetxattr(path, "user.dsm."+key, buf[:])
	if err != nil {
		return "-"
	}
	return string(buf[:n])
}

func (a areaRows) text(w io.Writer) error {
	rows := [][]string{{"PATH", "SIZE", "MODE", "OWNER", "VERSIONS", "MERGE", "DTYPE", "PLACEMENT", "STALENESS", "REPLICAS", "HOME", "PUBLISHED", "RESIDENT"}}
	for _, r := range a {
		published := "never"
		if t := dsm.Version(r.Version).Time(); !t.IsZero() {
			published = t.Format(time.DateTime)
		}
		owner, versions := "-", "-"
		if r.Owner != "" {
			owner, versions = r.Owner, strconv.Itoa(r.Versions)
		}
		rows = append(rows, []string{r.Path, formatSize(r.Size), r.Mode, owner, versions, r.Merge, r.DType, r.Placement, r.Staleness, r.replicasText(), r.homeText(), published, formatSize(r.Resident)})
	}
	return table(w, rows)
}

// figures returns what an area takes in the memory of this node, if it is or was open here, and how many versions of it can be read.
func figures(point, rel string) (resident int64, versions int) {
	text, err := os.ReadFile(filepath.Join(point, ".dsm", "areas", rel, "stats"))
	if err != nil {
		return 0, 0 // it has just been removed
	}
	for _, p := range parseFlat(string(text)) {
		switch p.key {
		case "resident_bytes":
			resident, _ = strconv.ParseInt(p.value, 10, 64)
		case "versions":
			versions, _ = strconv.Atoi(p.value)
		}
	}
	return resident, versions
}
