// Package admission tests what the API server itself holds: the rules and the texts of the CRDs, their columns, and the
// ValidatingAdmissionPolicies of deploy/admission. Nothing of Varve runs.
package admission
