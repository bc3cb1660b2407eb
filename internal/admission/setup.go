package admission

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=harvesterhci.io,resources=schedulevmbackups,verbs=list
// +kubebuilder:rbac:groups=longhorn.io,resources=volumes,namespace=varve,verbs=list
// +kubebuilder:rbac:groups="",resources=secrets,namespace=varve,verbs=create
// +kubebuilder:rbac:groups="",resources=secrets,namespace=varve,resourceNames=varve-webhook-cert,verbs=get;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=varve-utility-volumes,verbs=get;patch;update

// Names that deploy/ uses as well.
const (
	// Path is where the API server sends utility volumes.
	Path = "/validate-utility-volumes"
	// TrackersPath is where the API server sends the handlers' writes to trackers.
	TrackersPath = "/validate-tracker-writers"
	// SchedulesPath is where the API server sends schedules.
	SchedulesPath = "/validate-schedules"
	// ImagesPath is where the API server sends deletions of images.
	ImagesPath = "/validate-image-deletions"
	// DefaultPort is the port that the webhook listens on.
	DefaultPort = 9443
	// DefaultService is the Service in front of the webhook.
	DefaultService = "varve-webhook"
	// DefaultSecret holds the certificate and its authority.
	DefaultSecret = "varve-webhook-cert"
	// DefaultConfiguration is the ValidatingWebhookConfiguration that gets the caBundle.
	DefaultConfiguration = "varve-utility-volumes"
)

// Options are what SetupWebhook needs besides the manager. Only Namespace has no default.
type Options struct {
	// Namespace is where the Secret and the Service are.
	Namespace string
	// Port is the port to listen on. Default: DefaultPort.
	Port int
	// Host is the address to listen on. Default: all addresses.
	Host string
	// Service, Secret and Configuration name the objects. Default: the constants.
	Service, Secret, Configuration string
	// ClientCAs are the authorities of the API server's client certificate. The webhook then answers nobody without one. If
	// nil, it answers everybody: API servers have no certificate for webhooks unless they are configured to.
	ClientCAs *x509.CertPool
	// ExtraHosts are DNS names and addresses that the certificate covers besides the Service's.
	ExtraHosts []string
	// Clock tells the time. Default: the machine's.
	Clock clock.WithTicker
}

func (o Options) withDefaults() Options {
	if o.Port == 0 {
		o.Port = DefaultPort
	}
	for _, f := range []struct {
		have *string
		def  string
	}{{&o.Service, DefaultService}, {&o.Secret, DefaultSecret}, {&o.Configuration, DefaultConfiguration}} {
		if *f.have == "" {
			*f.have = f.def
		}
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// configureTLS says who the server is, and whom it answers.
func (o Options) configureTLS(t *tls.Config, k *keeper) {
	t.MinVersion = tls.VersionTLS12
	t.GetCertificate = k.getCertificate
	if o.ClientCAs != nil {
		t.ClientAuth, t.ClientCAs = tls.RequireAndVerifyClientCert, o.ClientCAs
	}
}

// SetupWebhook adds the webhook and the upkeep of its certificate to mgr. internal/controller calls it once:
//
//	admission.SetupWebhook(mgr, admission.Options{Namespace: "varve"})
//
// The webhook has its own server: it does not use mgr's WebhookServer option, which must not listen on the same
// port. SetupWebhook adds the readiness check "webhook", which fails until there is a certificate. Every replica
// serves, without waiting for the leader election.
func SetupWebhook(mgr ctrl.Manager, opts Options) error {
	if opts.Namespace == "" {
		return errors.New("admission webhook: no namespace for its certificate")
	}
	opts = opts.withDefaults()
	// Not the manager's client: its cache would list and watch every Secret.
	c, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return fmt.Errorf("admission webhook: %w", err)
	}
	keeper := &keeper{client: c, clock: opts.Clock, opts: opts}
	server := webhook.NewServer(webhook.Options{
		Host: opts.Host, Port: opts.Port,
		TLSOpts: []func(*tls.Config){func(t *tls.Config) { opts.configureTLS(t, keeper) }},
	})
	reader := newLimitedReader(mgr.GetAPIReader())
	decoder := admission.NewDecoder(mgr.GetScheme())
	for path, handler := range map[string]admission.Handler{
		Path:          &utilityVolumes{claims: reader, decoder: decoder},
		TrackersPath:  &trackerWriters{instances: reader, decoder: decoder},
		SchedulesPath: &scheduleTimes{schedules: reader, decoder: decoder},
		ImagesPath:    &imageDeletions{volumes: reader, decoder: decoder},
	} {
		server.Register(path, &admission.Webhook{Handler: handler})
	}
	if err := mgr.Add(keeper); err != nil {
		return fmt.Errorf("add the webhook's certificate keeper: %w", err)
	}
	if err := mgr.Add(server); err != nil {
		return fmt.Errorf("add the webhook's server: %w", err)
	}
	var ready healthz.Checker = func(*http.Request) error {
		_, err := keeper.getCertificate(nil)
		return err
	}
	if err := mgr.AddReadyzCheck("webhook", ready); err != nil {
		return fmt.Errorf("add the webhook's readiness check: %w", err)
	}
	return nil
}
