package mirror_test

import (
	"errors"
	"testing"
	"testing/fstest"

	"github.com/varvebackup/varve/images/internal/mirror"
)

func TestFind(t *testing.T) {
	t.Parallel()
	const deb822 = "Types: deb\n# a comment\nURIs: http://security.example/debian-security\nSuites: bookworm-security\nComponents: main\n" +
		"\nTypes: deb deb-src\nURIs: http://archive.example/debian/\nSuites: bookworm\n bookworm-updates\nComponents: main contrib\n"
	tests := map[string]struct {
		files map[string]string
		want  string
	}{
		"deb822, not the security archive": {map[string]string{"sources.list.d/debian.sources": deb822}, "http://archive.example/debian"},
		"one line": {
			map[string]string{"sources.list": "# deb http://no.example/debian trixie main\ndeb-src http://src.example/debian trixie main\ndeb http://one.example/debian trixie main # why\n"},
			"http://one.example/debian",
		},
		"one line with options": {
			map[string]string{"sources.list.d/a.list": "deb [arch=amd64 signed-by=/k] http://one.example/debian stable main contrib\n"},
			"http://one.example/debian",
		},
		"others' archives are passed over": {
			map[string]string{"sources.list.d/a.list": "deb http://tool.example/apt stable-tool main\n", "sources.list.d/b.sources": deb822},
			"http://archive.example/debian",
		},
		"a disabled source":       {map[string]string{"sources.list.d/a.sources": "Enabled: no\n" + "Types: deb\nURIs: http://a.example\nSuites: trixie\nComponents: main\n"}, ""},
		"a file that apt ignores": {map[string]string{"sources.list.d/a.list.off": "deb http://a.example/debian trixie main\n"}, ""},
		"nothing":                 {nil, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fsys := fstest.MapFS{}
			for path, text := range test.files {
				fsys[path] = &fstest.MapFile{Data: []byte(text)}
			}
			got, err := mirror.Find(fsys)
			if got != test.want {
				t.Errorf("found %q, want %q", got, test.want)
			}
			if (test.want == "") != errors.Is(err, mirror.ErrNone) {
				t.Errorf("error %v", err)
			}
		})
	}
}
