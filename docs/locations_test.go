package docs_test

import (
	"os"
	"regexp"
	"testing"

	"sigs.k8s.io/yaml"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/location"
)

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// The locations that locations.md shows are locations.
func TestLocations_showsLocationsThatWork(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("locations.md")
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{"default": "s3://s3.eu-central-1.amazonaws.com/backups", "shelf": "claim backups/here", "nas": "nfs://nas.lan/export/backups", "cold": "s3://s3.eu-central-1.amazonaws.com/backups"}
	secrets := location.Secrets{"default-credentials": {"cloud": []byte("[default]\naws_access_key_id = A\naws_secret_access_key = B\n")}}
	for _, block := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
		l := &velerov1.BackupStorageLocation{}
		if err := yaml.UnmarshalStrict([]byte(block[1]), l); err != nil {
			t.Errorf("%s: %v", block[1], err)
			continue
		}
		place, err := location.Parse(l, secrets)
		if err != nil || place.String() != places[l.Name] {
			t.Errorf("%s: %s %v, want %s", l.Name, place, err, places[l.Name])
		}
		delete(places, l.Name)
	}
	if len(places) > 0 {
		t.Errorf("not shown: %v", places)
	}
}
