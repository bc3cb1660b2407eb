package repository

// failpoint is told of each step on the way to something durable: of "… put" when it was handed to kopia, and of "… stored" when it lasts.
// Tests end the process there, to see that what is left is whole; nothing else sets it.
var failpoint func(step string)

// reached says that a step was reached.
func reached(step string) {
	if failpoint != nil {
		failpoint(step)
	}
}
