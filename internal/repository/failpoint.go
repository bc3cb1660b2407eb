package repository

// failpoint is called at each step towards something durable: with "… put" when it was handed to kopia, and with "… stored" when
// it is durable. Tests end the process there, to check that what is left is intact. Nothing else sets it.
var failpoint func(step string)

// reached reports that a step was reached.
func reached(step string) {
	if failpoint != nil {
		failpoint(step)
	}
}
