package engine

// Failpoint is called at each step towards something durable: with "… put" when it was handed to kopia, and with "… stored" when
// it is durable. Tests end the process there, to check that what is left is intact. Nothing else sets it.
var Failpoint func(step string)

// Reached reports that a step was reached.
func Reached(step string) {
	if Failpoint != nil {
		Failpoint(step)
	}
}
