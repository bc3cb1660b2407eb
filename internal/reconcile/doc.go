// Package reconcile holds what the reconcilers of the controller and of the handler share: their options, the answer to
// a lost race, the difference between a refusal and a failure, the requests that a changed object causes, and events
// that the API server accepts. Decisions belong to the reconcilers themselves.
package reconcile
