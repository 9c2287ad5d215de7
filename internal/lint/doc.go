// Package lint contains tests only. They check the whole tree against the rules of the house, as
// part of go test ./... Each finding is reported once, with file and line. The only way to silence
// one is to change the list in the test, which gives the reason.
package lint
