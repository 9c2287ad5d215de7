//go:build race

package pagetest

const race = true
