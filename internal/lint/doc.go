// Package lint has no code of its own: its tests hold the tree to the rules of
// the house, as part of go test ./... What they say is said once, with the file
// and the line, and there is no way to silence one but to change the list beside it,
// where the reason stands.
package lint
