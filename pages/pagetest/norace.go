//go:build !race

package pagetest

const race = false
