package spdk

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/varvebackup/varve/internal/errclass"
)

// answering returns a dialer to a target that reads a call, says something, and hangs up if it is told to.
func answering(says string, hangUp bool) dialer {
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Read(make([]byte, 4096))
			_, _ = io.WriteString(theirs, says)
			if hangUp {
				_ = theirs.Close()
			}
		}()
		return ours, nil
	}
}

func TestClient_saysWhatIsUncertain(t *testing.T) {
	t.Parallel()
	refused := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
	for name, x := range map[string]struct {
		dial dialer
		want error
	}{
		"right":           {answering(`{"id":1,"result":5}`, false), nil},
		"refused":         {refused, errclass.Transient},
		"hung up":         {answering("", true), errclass.Unknown},
		"half an answer":  {answering(`{"id":1,"res`, true), errclass.Unknown},
		"no JSON":         {answering(`no`, false), errclass.Unknown},
		"another call":    {answering(`{"id":2,"result":5}`, false), errclass.Unknown},
		"no result":       {answering(`{"id":1}`, false), errclass.Unknown},
		"another type":    {answering(`{"id":1,"result":"5"}`, false), errclass.Unknown},
		"an error":        {answering(`{"id":1,"error":{"code":-28,"message":"full"}}`, false), errclass.Exhausted},
		"timed out there": {answering(`{"id":1,"error":{"code":-110,"message":"x"}}`, false), errclass.Unknown},
	} {
		result := 0
		err := client{dial: x.dial}.call(t.Context(), "bdev_lvol_resize", nil, &result)
		if !errors.Is(err, x.want) || (x.want == nil && result != 5) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
		// What was only asked has changed nothing.
		err = client{dial: x.dial}.call(t.Context(), "bdev_lvol_get_lvols", nil, &result)
		if errors.Is(x.want, errclass.Unknown) && name != "timed out there" && errclass.Of(err) != errclass.Transient {
			t.Errorf("%s: a question ends with %v", name, err)
		}
	}
}

// A target that does not answer, as one that is stopped, holds nobody longer than the call may take.
func TestClient_endsWithItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		err := client{dial: answering("", false)}.call(t.Context(), "method", nil, nil)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errclass.Unknown) {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestOptions_dataAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"", "127.0.0.1", "localhost:4420", "[::1]:4420", "127.0.0.1:0", "127.0.0.1:65536", ":4420",
	} {
		_, err := openDisk(t.Context(), Options{DataAddress: address}, nil, testHostID)
		wantError(t, err, errclass.Invalid)
	}
}
