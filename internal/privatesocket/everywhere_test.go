package privatesocket_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Sockets that others could connect to come from a listener that was opened without this package. So the programs of
// this module have none: no file but this package's listens on "unix", and none binds a socket itself.
func TestSockets_areListenedOnHereAlone(t *testing.T) {
	t.Parallel()
	const root = "../.."
	for _, top := range []string{"api", "cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "privatesocket" || strings.HasSuffix(d.Name(), "test")):
				return filepath.SkipDir
			case !d.IsDir() && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
				for _, place := range openListeners(t, path) {
					t.Errorf("%s listens on a unix socket: use privatesocket.Listen", place)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenListeners_findsEveryKind(t *testing.T) {
	t.Parallel()
	const source = `package p
func f() {
	net.Listen("unix", "s")
	net.ListenUnix("unix", nil)
	new(net.ListenConfig).Listen(ctx, "unixpacket", "s")
	net.ListenPacket("unixgram", "s")
	unix.Bind(0, nil)
	net.Listen("tcp", "127.0.0.1:0")
	d.DialContext(ctx, "unix", "s")
	privatesocket.Listen(ctx, "s")
}`
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	if found := listenersIn(files, file); len(found) != 5 {
		t.Errorf("found %v, want the first five lines of the function", found)
	}
}

func openListeners(t *testing.T, path string) []string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return listenersIn(files, file)
}

// listenersIn returns where the file binds a socket, or listens on one whose network it calls unix.
func listenersIn(files *token.FileSet, file *ast.File) []string {
	var places []string
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		called, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || (called.Sel.Name != "Bind" && !strings.HasPrefix(called.Sel.Name, "Listen")) {
			return true
		}
		for _, argument := range call.Args {
			text, ok := argument.(*ast.BasicLit)
			if called.Sel.Name == "Bind" || (ok && strings.HasPrefix(text.Value, `"unix`)) {
				places = append(places, files.Position(call.Pos()).String())
				break
			}
		}
		return true
	})
	return places
}
