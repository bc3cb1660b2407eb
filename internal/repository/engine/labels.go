package engine

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// tagGroup is the tag with the restore point's group.
	tagGroup = "tag:varve-group"
	// tagLabelPrefix and a key name the tag with the value of one of the restore point's labels.
	tagLabelPrefix = "tag:varve-label-"

	// MaxLabels is how many labels a restore point can have. Manifests are small: whoever opens a repository reads all of them.
	MaxLabels = 16
	// MaxLabelKeyBytes, MaxLabelValueBytes and MaxGroupBytes bound their lengths.
	MaxLabelKeyBytes   = 128
	MaxLabelValueBytes = 256
	MaxGroupBytes      = 128
)

// Filter selects restore points: those that have all of what is set.
type Filter struct {
	Source *Source
	Group  string
	// Labels are keys with the value that each must have.
	Labels map[string]string
}

// labelKey matches the keys of labels, and groups: the keys of Kubernetes' labels and its UIDs are among them.
var labelKey = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)

// CheckLabels says what is wrong with a group, which may be "", or with labels: errclass.Invalid.
func CheckLabels(group string, labels map[string]string) error {
	if group != "" && (len(group) > MaxGroupBytes || !labelKey.MatchString(group)) {
		return fmt.Errorf("%w: group %q: %s", errclass.Invalid, group, describeKey(MaxGroupBytes))
	}
	if len(labels) > MaxLabels {
		return fmt.Errorf("%w: %d labels: a restore point can have %d", errclass.Invalid, len(labels), MaxLabels)
	}
	var all []error
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		switch {
		case len(key) > MaxLabelKeyBytes || !labelKey.MatchString(key):
			all = append(all, fmt.Errorf("%w: label %q: %s", errclass.Invalid, key, describeKey(MaxLabelKeyBytes)))
		case len(value) > MaxLabelValueBytes || !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
			all = append(all, fmt.Errorf("%w: label %s has the value %q: at most %d bytes of UTF-8 without control characters", errclass.Invalid, key, value, MaxLabelValueBytes))
		}
	}
	return errors.Join(all...)
}

func describeKey(maxBytes int) string {
	return fmt.Sprintf("1 to %d letters, digits, dots, dashes, underscores and slashes, with a letter or digit at both ends", maxBytes)
}

// Tags returns the tags of the restore point's manifest.
func (p *RestorePoint) Tags() map[string]string {
	tags := map[string]string{TagFormat: FormatTag, TagID: p.ID}
	addUserTags(tags, p.Group, p.Labels)
	return tags
}

// ReadTags sets what the tags of a manifest say about its restore point.
func (p *RestorePoint) ReadTags(tags map[string]string) {
	p.Group = tags[tagGroup]
	for tag, value := range tags {
		key, ok := strings.CutPrefix(tag, tagLabelPrefix)
		if !ok {
			continue
		}
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[key] = value
	}
}

func addUserTags(tags map[string]string, group string, labels map[string]string) {
	if group != "" {
		tags[tagGroup] = group
	}
	for key, value := range labels {
		tags[tagLabelPrefix+key] = value
	}
}
