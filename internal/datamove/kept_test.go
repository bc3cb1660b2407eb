package datamove

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestKeptSnapshot_survivesItsEncoding(t *testing.T) {
	t.Parallel()
	k := KeptSnapshot{
		Upload: types.NamespacedName{Namespace: "velero", Name: "b1-x"}, UploadUID: "u", Claim: types.NamespacedName{Namespace: "app", Name: "data"}, ClaimUID: "c",
		StorageClass: "fast", Driver: "csi.test", Repository: "repo",
	}
	got, err := DecodeKeptSnapshot(k.Encode())
	if err != nil || got != k {
		t.Errorf("%+v, %v", got, err)
	}
	if why := validation.IsValidLabelValue(k.Key()); len(why) > 0 {
		t.Error(why)
	}
	other := k
	other.Upload.Name, other.UploadUID, other.StorageClass = "b2-x", "u2", "slow"
	if other.Key() != k.Key() {
		t.Error("two snapshots of a claim in a repository are kept")
	}
	for _, edit := range []func(*KeptSnapshot){func(k *KeptSnapshot) { k.ClaimUID = "c2" }, func(k *KeptSnapshot) { k.Repository = "repo2" }} {
		other := k
		if edit(&other); other.Key() == k.Key() {
			t.Errorf("%+v has the key of another", other)
		}
	}
	for _, text := range []string{"", "{}", "[]", `{"uploadUID":"u","claimUID":"c","driver":"d"}`} {
		if got, err := DecodeKeptSnapshot(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
