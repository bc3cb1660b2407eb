package podspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ConfigVersion is the version of Config that this package writes and reads.
const ConfigVersion = 1

// Config says what an export pod serves: either Volumes or Backup.
type Config struct {
	// Version is ConfigVersion.
	Version int `json:"version"`
	// Namespace, Name and UID are the export's.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Volumes are the disks that the pod has mounted.
	Volumes []Volume `json:"volumes,omitempty"`
	// Manifests says that the pod has the manifests of the machine with these Volumes in ManifestsDirectory.
	Manifests bool `json:"manifests,omitempty"`
	// Backup is what the launcher offers through the tunnel.
	Backup *Backup `json:"backup,omitempty"`
}

// Volume is a disk that is mounted into the pod.
type Volume struct {
	// Name is the claim's name, and the volume's in RawPath and GzipPath.
	Name string `json:"name"`
	// Path is the file or the block device.
	Path string `json:"path"`
}

// Backup is a VirtualMachineBackup in pull mode.
type Backup struct {
	// Name and UID are the backup's. The tunnel's token is for this UID alone.
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// Volumes are the names of its volumes, as in DataPath and MapPath.
	Volumes []string `json:"volumes"`
}

// Encode returns the configuration as ConfigVariable has it. Equal configurations have equal encodings.
func (c Config) Encode() string {
	c.Version = ConfigVersion
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// Decode reads the value of ConfigVariable. It refuses fields and versions that it does not know, and a configuration
// that does not say what to serve.
func Decode(text string) (Config, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var c Config
	if err := decoder.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("decode %s: %w", ConfigVariable, err)
	}
	if decoder.More() {
		return Config{}, fmt.Errorf("decode %s: more than one object", ConfigVariable)
	}
	if err := c.validate(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", ConfigVariable, err)
	}
	return c, nil
}

func (c Config) validate() error {
	if c.Version != ConfigVersion {
		return fmt.Errorf("version %d, want %d", c.Version, ConfigVersion)
	}
	if (len(c.Volumes) > 0) == (c.Backup != nil) {
		return errors.New("neither or both of volumes and backup")
	}
	if c.Manifests && c.Backup != nil {
		return errors.New("manifests of a backup")
	}
	names := map[string]bool{}
	for _, v := range c.Volumes {
		if !path.IsAbs(v.Path) {
			return fmt.Errorf("volume %q: path %q is not absolute", v.Name, v.Path)
		}
		if err := checkVolumeName(names, v.Name); err != nil {
			return err
		}
	}
	if c.Backup == nil {
		return nil
	}
	if c.Backup.UID == "" || len(c.Backup.Volumes) == 0 {
		return errors.New("a backup without a UID or without volumes")
	}
	for _, name := range c.Backup.Volumes {
		if err := checkVolumeName(names, name); err != nil {
			return err
		}
	}
	return nil
}

// checkVolumeName refuses names that are not one element of a path, and names that are there twice.
func checkVolumeName(seen map[string]bool, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\%?#") || seen[name] {
		return fmt.Errorf("volume %q: empty, twice, or not an element of a path", name)
	}
	seen[name] = true
	return nil
}
