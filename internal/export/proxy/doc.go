// Package proxy is the export proxy, `varve export-proxy`: it serves exports to clients outside the cluster. A request for
//
//	/api/export.kubevirt.io/v1beta1/namespaces/<namespace>/virtualmachineexports/<export>/<path>
//
// goes to /<path> of the export's Service, with the client's token. The proxy has no token, no key of an export and no
// account at the API server. What it knows is which authorities sign the certificates of exports, so nobody else ever
// gets a token from it: the address follows from the two names, redirects are not followed, and an answer counts only
// from a server with the certificate of that export.
//
// Bodies are passed on as they come, one buffer for each request. A client that goes ends the request to the export, and
// an export that goes breaks the client's connection, so that no client takes a part for the whole. Headers pass in both
// directions only if they are known here. Connections, requests and their time are bounded by Limits; a client is known
// once an export has accepted its token, and keeps its connection however many strangers come (package httpserver).
//
// Requests are counted by namespace, so that one tenant cannot take all places. Tokens and queries are never logged.
package proxy
