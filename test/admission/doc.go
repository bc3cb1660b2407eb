// Package admission tests what the API server itself enforces: the rules and messages of the CRDs, their columns, and
// the ValidatingAdmissionPolicies of deploy/admission. No part of Varve runs.
package admission
