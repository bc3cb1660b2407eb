package proxy

// What the installation, the controller and the program agree on.
const (
	// Name is the name of the Deployment, of the Service in front of it, and of the Ingress that leads to that.
	Name = "varve-exportproxy"
	// CertificateSecret is the Secret with the proxy's certificate, of type kubernetes.io/tls.
	CertificateSecret = "varve-exportproxy-cert"
	// Port is where the proxy listens.
	Port = 8443
	// HealthPath answers 200 as long as the proxy runs, and ReadyPath as long as it can reach exports. Both need no token.
	HealthPath, ReadyPath = "/healthz", "/readyz"
	// Directory has what is mounted into the pod.
	Directory = "/run/varve/export-proxy"
)

// Files are what is mounted into the pod. All of them are in PEM, and replaced while the proxy runs.
type Files struct {
	// Certificate and Key are the proxy's own.
	Certificate, Key string
	// Authorities are those that sign the certificates of exports.
	Authorities string
}

// PodFiles returns the paths in a pod of the proxy.
func PodFiles() Files {
	return Files{
		Certificate: Directory + "/certificate/tls.crt", Key: Directory + "/certificate/tls.key", Authorities: Directory + "/authorities/ca.crt",
	}
}
