// Package exportproxy knows where clients outside the cluster reach exports, and keeps the certificate of the export proxy
// that they meet there.
//
// The address is what the controller was told, or else the host of the Ingress varve-exportproxy in Varve's namespace.
// What clients must trust there depends on who ends TLS: an Ingress that has a Secret for the host, or else the proxy.
// The proxy's certificate is in the Secret varve-exportproxy-cert. The authority of exports signs it, so that clients
// trust it before it changes, unless somebody else has made that Secret: then it is left alone, and its certificates are
// what clients trust.
package exportproxy

// +kubebuilder:rbac:groups=networking.k8s.io,resources=ingresses,resourceNames=varve-exportproxy,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update
