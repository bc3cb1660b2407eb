// Package arrival prepares launchers of this node to take over guests that migrations move here, and reports in the
// instances' status when they listen and when the guests run. It writes nothing else: until the controller hands an
// instance over, it belongs to the handler of its source.
//
// It looks at the migrations whose label names this node, and reads everything else from the API server. A target
// whose migration has failed ends; one whose migration has completed and that has not heard so from the source's
// launcher is told to let the guest run.
package arrival
