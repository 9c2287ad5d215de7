package coherence

import "github.com/dsmfs/dsmfs/internal/dsm"

// smallCases are kinds with an area of a few pages.
var smallCases = []simCase{
	ofFewPages(simCase{name: "last-small", resize: true, starves: true, rules: bytesRule, store: storeBytes, check: checkBytes}),
	ofFewPages(simCase{name: "sum-small", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), rules: addsRule, store: addInts, check: checkInts}),
	ofFewPages(simCase{name: "round-small", ino: sumOf(dsm.DTypeI32, dsm.ApplyAuto), rounds: true, rules: applyRule, store: addInts, check: checkInts}),
	ofFewPages(simCase{name: "last-small-crash", crashes: true, rules: bytesRule, store: storeBytes, check: checkBytes}),
	ofFewPages(simCase{name: "last-small-away", aways: true, rules: bytesRule, store: storeBytes, check: checkBytes}),
	fewPagesOf(versioned, "versioned-small"),
	fewPagesOf(versionedMarked, "marked-small"),
	fewPagesOf(crashOf(versioned, ""), "versioned-small-crash"),
	fewPagesOf(crashOf(versionedMarked, ""), "marked-small-crash"),
}

func ofFewPages(c simCase) simCase {
	c.small = true
	return c
}

func fewPagesOf(c simCase, name string) simCase {
	c.name = name
	return ofFewPages(c)
}

func init() { simCases = append(simCases, smallCases...) }
