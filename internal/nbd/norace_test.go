//go:build !race

package nbd

// raceEnabled: the race detector makes pools forget.
const raceEnabled = false
