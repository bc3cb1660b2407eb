// Package settings reads the settings of the data mover: the ConfigMap [ConfigMap] in Varve's namespace, key [Key].
// Controllers read it while they run, so a change needs no restart.
//
// The text is decoded strictly: a field that is not known is an error, and so is a value that makes no sense. Who reads settings that
// are bad keeps those that it had; package settings never returns a part of them.
package settings

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
)

const (
	// ConfigMap is the name of the ConfigMap that has the settings.
	ConfigMap = "varve"
	// Key is its key that has them, in YAML.
	Key = "config.yaml"
)

// Defaults.
const (
	DefaultPerNode        = 2
	DefaultPreparing      = 20
	DefaultPrepareTimeout = 30 * time.Minute
	DefaultConsumerWait   = 10 * time.Minute
)

// Settings are those of the data mover.
type Settings struct {
	// BuiltIn says that Varve is the built-in data mover: it serves objects that name none, or Velero's.
	BuiltIn bool `json:"builtIn,omitempty"`
	// Namespaces are those whose DataUploads and DataDownloads are served. Whoever may create these there may have volumes read.
	Namespaces []string `json:"namespaces,omitempty"`
	// Concurrency limits how many objects are served at once.
	Concurrency Concurrency `json:"concurrency,omitempty"`
	// PrepareTimeout is how long it may take until a mover pod runs.
	PrepareTimeout metav1.Duration `json:"prepareTimeout,omitempty"`
	// ConsumerWait is how long a restore of Velero's waits for a pod that uses the claim, where the claim's
	// StorageClass has its volumes made for a first consumer; 0s: not at all. Use EffectiveConsumerWait.
	ConsumerWait metav1.Duration `json:"consumerWait,omitempty"`
	// Parallel is how many parts of a volume are moved at once; 0: as many as the mover finds good.
	Parallel int `json:"parallel,omitempty"`
	// Pod is for every mover pod.
	Pod Pod `json:"pod,omitempty"`
	// StorageClasses says, for the StorageClass of a volume that is backed up, how its snapshot is made accessible.
	StorageClasses map[string]StorageClass `json:"storageClasses,omitempty"`
}

// Concurrency limits how many objects are served at once.
type Concurrency struct {
	// PerNode is how many places a node has.
	PerNode int `json:"perNode,omitempty"`
	// Nodes are other numbers for some nodes. Where several entries fit a node, the smallest number counts.
	Nodes []NodeConcurrency `json:"nodes,omitempty"`
	// Cluster is how many are served in the cluster; 0: no limit.
	Cluster int `json:"cluster,omitempty"`
	// Preparing is how many more are prepared in the cluster that have no place, because what they need before their
	// pods takes long, such as a snapshot; 0: none, they hold their places meanwhile.
	Preparing int `json:"preparing,omitempty"`
}

// NodeConcurrency is the limit of the nodes that a selector selects.
type NodeConcurrency struct {
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`
	// PerNode is at least 0: such a node takes no object.
	PerNode int `json:"perNode"`
}

// Pod is what every mover pod has.
type Pod struct {
	Resources         corev1.ResourceRequirements `json:"resources,omitempty"`
	PriorityClassName string                      `json:"priorityClassName,omitempty"`
	Tolerations       []corev1.Toleration         `json:"tolerations,omitempty"`
	Labels            map[string]string           `json:"labels,omitempty"`
	Annotations       map[string]string           `json:"annotations,omitempty"`
}

// StorageClass says how snapshots of volumes of a StorageClass are made accessible.
type StorageClass struct {
	// StorageClass is that of the claim that is made from the snapshot; "": the volume's own.
	StorageClass string `json:"storageClass,omitempty"`
	// ReadOnly asks for a claim with the access mode ReadOnlyMany.
	ReadOnly bool `json:"readOnly,omitempty"`
	// ReadWhole keeps Varve from asking the driver what has changed: Block volumes are read as a whole.
	ReadWhole bool `json:"readWhole,omitempty"`
	// KeepSnapshot keeps the snapshot of the latest restore point of each Block claim until the next one is published, for drivers that can
	// tell what has changed only since a snapshot that they have. It takes space on the storage.
	KeepSnapshot bool `json:"keepSnapshot,omitempty"`
}

// Default returns the settings of an installation without a ConfigMap.
func Default() Settings {
	return Settings{
		Namespaces:     []string{layout.Namespace, datamove.VeleroNamespace},
		Concurrency:    Concurrency{PerNode: DefaultPerNode, Preparing: DefaultPreparing},
		PrepareTimeout: metav1.Duration{Duration: DefaultPrepareTimeout},
		ConsumerWait:   metav1.Duration{Duration: DefaultConsumerWait},
	}
}

// Decode reads settings. What the text does not have is as in Default.
func Decode(text string) (Settings, error) {
	s := Default()
	s.Namespaces = nil
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		return Settings{}, fmt.Errorf("decode %s: %w", Key, err)
	}
	if s.Namespaces == nil {
		s.Namespaces = Default().Namespaces
	}
	if err := s.validate(); err != nil {
		return Settings{}, fmt.Errorf("%s: %w", Key, err)
	}
	return s, nil
}

// OfConfigMap returns the settings that a ConfigMap has; those of Default if there is none, or none with Key.
func OfConfigMap(m *corev1.ConfigMap) (Settings, error) {
	if m == nil || m.Data[Key] == "" {
		return Default(), nil
	}
	return Decode(m.Data[Key])
}

func (s *Settings) validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, n := range s.Namespaces {
		if msgs := validation.IsDNS1123Label(n); len(msgs) > 0 {
			refuse("namespaces: %q is not the name of a namespace", n)
		}
	}
	if s.Concurrency.PerNode < 1 || s.Concurrency.PerNode > maxConcurrency {
		refuse("concurrency.perNode: %d is not between 1 and %d", s.Concurrency.PerNode, maxConcurrency)
	}
	if s.Concurrency.Cluster < 0 {
		refuse("concurrency.cluster: %d is negative; 0 sets no limit", s.Concurrency.Cluster)
	}
	if s.Concurrency.Preparing < 0 || s.Concurrency.Preparing > maxConcurrency {
		refuse("concurrency.preparing: %d is not between 0 and %d", s.Concurrency.Preparing, maxConcurrency)
	}
	for i, n := range s.Concurrency.Nodes {
		if n.PerNode < 0 || n.PerNode > maxConcurrency {
			refuse("concurrency.nodes[%d].perNode: %d is not between 0 and %d", i, n.PerNode, maxConcurrency)
		}
		if _, err := metav1.LabelSelectorAsSelector(&n.NodeSelector); err != nil {
			refuse("concurrency.nodes[%d].nodeSelector: %w", i, err)
		}
	}
	if s.PrepareTimeout.Duration < time.Second {
		refuse("prepareTimeout: %s is less than a second", s.PrepareTimeout.Duration)
	}
	if s.ConsumerWait.Duration < 0 {
		refuse("consumerWait: %s is negative; 0s waits for no pod", s.ConsumerWait.Duration)
	}
	if s.Parallel < 0 {
		refuse("parallel: %d is negative", s.Parallel)
	}
	for name, class := range s.StorageClasses {
		if class.ReadWhole && class.KeepSnapshot {
			refuse("storageClasses.%s: readWhole and keepSnapshot: a snapshot that nobody counts from is not kept", name)
		}
	}
	return errors.Join(append(errs, s.Pod.validate()...)...)
}

// maxConcurrency is more than a node can have pods.
const maxConcurrency = 1000

func (p *Pod) validate() []error {
	var errs []error
	for key, value := range p.Labels {
		if len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			errs = append(errs, fmt.Errorf("pod.labels: %s=%s is not a label", key, value))
		}
	}
	for key := range p.Annotations {
		if len(validation.IsQualifiedName(key)) > 0 {
			errs = append(errs, fmt.Errorf("pod.annotations: %s is not an annotation", key))
		}
	}
	if len(p.Resources.Claims) > 0 {
		errs = append(errs, errors.New("pod.resources.claims: not supported"))
	}
	return errs
}

// Serves says whether the objects of a namespace are served.
func (s *Settings) Serves(namespace string) bool { return slices.Contains(s.Namespaces, namespace) }

// ServesMover says whether spec.datamover selects Varve.
func (s *Settings) ServesMover(mover string) bool {
	return mover == datamove.Mover || s.BuiltIn && (mover == "" || mover == datamove.BuiltIn)
}

// EffectiveConsumerWait returns how long a restore waits for a pod that uses its claim: half of PrepareTimeout at most,
// so that there is time to make the volume afterwards.
func (s *Settings) EffectiveConsumerWait() time.Duration {
	return min(s.ConsumerWait.Duration, s.PrepareTimeout.Duration/2)
}

// PerNode returns how many places a node with these labels has.
func (s *Settings) PerNode(node map[string]string) int {
	limit, found := s.Concurrency.PerNode, false
	for i := range s.Concurrency.Nodes {
		n := &s.Concurrency.Nodes[i]
		selector, err := metav1.LabelSelectorAsSelector(&n.NodeSelector)
		if err != nil || !selector.Matches(labels.Set(node)) {
			continue // Decode accepts no bad selector
		}
		if !found || n.PerNode < limit {
			limit, found = n.PerNode, true
		}
	}
	return limit
}
