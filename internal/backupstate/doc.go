// Package backupstate says what the states of a VirtualMachineBackup are called, who ends them, and what users read
// about them. The controller and the handler both write a backup's status. They take its words from here, so that an
// event reads the same whichever of them sees it first. The CLI takes from here why a disk is full.
//
// The package has one function for each thing that can happen to a backup. It returns a State: a reason of
// api/backup/v1alpha1 and a message that says what happened to which object and what to do next. The functions are
// pure. They read no clock and no cluster, and they decide nothing: when something happens is the business of the
// controller and the handler.
//
// Invariants, held by the tests:
//   - Each reason of the API has a message, a line in the API's documentation, and a component that writes it.
//   - Each phase that is not final has one owner, the component that normally ends it.
//   - An event that both components can see has one message (package test/backupevents lists them).
package backupstate
