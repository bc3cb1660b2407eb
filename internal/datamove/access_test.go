package datamove

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// secretAccess has a secret in every field that may have one.
func secretAccess() Access {
	return Access{
		Version: AccessVersion, Password: "secret-password", UniqueID: "abcd",
		S3: &S3Access{Endpoint: "s3.example.com", Bucket: "b", Prefix: "p/", AccessKey: "secret-access", SecretKey: "secret-key", SessionToken: "secret-token"},
	}
}

func TestAccess_survivesItsEncoding(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]Access{
		"bucket":    secretAccess(),
		"directory": {Password: "p", Directory: StorageDirectory + "/a", ReadOnly: true},
		"authority": {Password: "p", S3: &S3Access{Endpoint: "e", RootCA: []byte("PEM"), PlainHTTP: true, Region: "r", AccessKey: "a", SecretKey: "s"}},
		"role":      {Password: "p", S3: &S3Access{Endpoint: "e", Role: &RoleAccess{ARN: "arn", STS: "https://sts"}}},
	} {
		got, err := DecodeAccess(a.Encode())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		a.Version = AccessVersion
		if !bytes.Equal(got.Encode(), a.Encode()) || got.Password != a.Password || got.Directory != a.Directory || got.ReadOnly != a.ReadOnly {
			t.Errorf("%s: it changed", name)
		}
		if a.S3 != nil && !cmp.Equal(a.S3.RootCA, got.S3.RootCA) {
			t.Errorf("%s: another authority", name)
		}
	}
}

func TestAccess_isPrintedByNothing(t *testing.T) {
	t.Parallel()
	a := secretAccess()
	var out bytes.Buffer
	values := []any{a, &a, a.S3, *a.S3, []Access{a}, []*Access{&a}, map[string]Access{"a": a}, struct{ A Access }{a}, struct{ S *S3Access }{a.S3}}
	for _, value := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%5.2v"} {
			fmt.Fprintf(&out, verb+"\n", value)
		}
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("x", "access", a, "pointer", &a, "s3", a.S3, "value", *a.S3)
	}
	fmt.Fprintln(&out, fmt.Errorf("open: %v", a))
	if strings.Contains(out.String(), "secret-") || strings.Contains(out.String(), "7365637265742d") {
		t.Errorf("a secret was printed:\n%s", out.String())
	}
	if len(a.Secrets()) != 3 {
		t.Errorf("%d secrets", len(a.Secrets()))
	}
}

func TestDecodeAccess_refuses(t *testing.T) {
	t.Parallel()
	edited := func(edit func(map[string]any)) []byte {
		fields := map[string]any{}
		if err := json.Unmarshal(secretAccess().Encode(), &fields); err != nil {
			t.Fatal(err)
		}
		edit(fields)
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	s3 := func(edit func(map[string]any)) []byte {
		return edited(func(f map[string]any) { edit(f["s3"].(map[string]any)) })
	}
	for name, text := range map[string][]byte{
		"no access key":    s3(func(f map[string]any) { delete(f, "accessKey") }),
		"no secret key":    s3(func(f map[string]any) { delete(f, "secretKey") }),
		"keys and role":    s3(func(f map[string]any) { f["role"] = map[string]any{"arn": "a", "sts": "s"} }),
		"nothing":          nil,
		"no JSON":          []byte("secret-password"),
		"a cut text":       secretAccess().Encode()[:40],
		"another type":     edited(func(f map[string]any) { f["version"] = "secret-version" }),
		"a later version":  edited(func(f map[string]any) { f["version"] = AccessVersion + 1 }),
		"an unknown field": edited(func(f map[string]any) { f["secret-field"] = "secret-value" }),
		"no password":      edited(func(f map[string]any) { delete(f, "password") }),
		"no place":         edited(func(f map[string]any) { delete(f, "s3") }),
		"two places":       edited(func(f map[string]any) { f["directory"] = "/secret-directory" }),
	} {
		_, err := DecodeAccess(text)
		if err == nil {
			t.Errorf("%s was accepted", name)
			continue
		}
		if strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), AccessKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeAccess(f *testing.F) {
	f.Add(secretAccess().Encode())
	f.Add([]byte(`{"version":1,"password":"p","directory":"/d"}`))
	f.Add([]byte(`{"version":1,"password":"p","s3":null,"directory":"/d"} x`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := DecodeAccess(text)
		if err != nil {
			return
		}
		again, err := DecodeAccess(a.Encode())
		if err != nil || !bytes.Equal(again.Encode(), a.Encode()) {
			t.Errorf("decoded once more: %v", err)
		}
		if a.Password == "" || a.Version != AccessVersion || (a.S3 == nil) == (a.Directory == "") {
			t.Error("it is incomplete")
		}
	})
}
