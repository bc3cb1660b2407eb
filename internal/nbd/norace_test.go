//go:build !race

package nbd

// raceEnabled: under the race detector, pools drop what they hold.
const raceEnabled = false
