package s3

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
)

// boxKeys matches the keys in a file of credentials in AWS's format.
var boxKeys = regexp.MustCompile(`(?m)^aws_access_key_id=(\S+)\naws_secret_access_key=(\S+)$`)

// OnBox returns the two buckets of the S3 service that `make box-s3` brings up beside the box in a directory: one without and one with object lock.
func OnBox(dir string) (plain, locked Endpoint, err error) {
	var described struct{ Endpoint, Region, Bucket, LockedBucket, CAFile, CredentialsFile string }
	data, err := os.ReadFile(filepath.Join(dir, "s3.json"))
	if err != nil {
		return plain, locked, fmt.Errorf("find the S3 service of the box: %w: run `make box-s3`", err)
	}
	if err := json.Unmarshal(data, &described); err != nil {
		return plain, locked, fmt.Errorf("find the S3 service of the box: %w", err)
	}
	endpoint, err := url.Parse(described.Endpoint)
	if err != nil {
		return plain, locked, fmt.Errorf("find the S3 service of the box: %w", err)
	}
	plain = Endpoint{Address: endpoint.Host, Region: described.Region, Bucket: described.Bucket}
	if plain.Authority, err = os.ReadFile(described.CAFile); err != nil {
		return plain, locked, fmt.Errorf("read the authority of the box's S3 service: %w", err)
	}
	credentials, err := os.ReadFile(described.CredentialsFile)
	if err != nil {
		return plain, locked, fmt.Errorf("read the keys of the box's S3 service: %w", err)
	}
	keys := boxKeys.FindSubmatch(credentials)
	if keys == nil {
		return plain, locked, fmt.Errorf("read the keys of the box's S3 service: there are none in %s", described.CredentialsFile)
	}
	plain.AccessKey, plain.SecretKey = string(keys[1]), string(keys[2])
	locked = plain
	locked.Bucket = described.LockedBucket
	return plain, locked, nil
}
