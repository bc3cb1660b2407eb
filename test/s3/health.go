package s3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/varvebackup/varve/test/process"
	"github.com/varvebackup/varve/test/wait"
)

// healthPath is the path of the server's health check. No bucket can have this name.
const healthPath = "/-/health"

// ready waits until the server answers.
func (s *Server) ready(ctx context.Context, p *process.Process) error {
	transport := s.transport()
	transport.DisableKeepAlives = true
	return wait.For(ctx, time.Minute, "an answer", func(ctx context.Context) (bool, string, error) {
		err := healthy(ctx, transport, s.URL()+healthPath)
		if err == nil {
			return true, "", nil
		}
		if ended, how := p.Ended(); ended {
			return false, "", fmt.Errorf("it ended: %w", errors.Join(how, errors.New(process.Tail(s.log))))
		}
		return false, err.Error(), nil
	})
}

func healthy(ctx context.Context, transport http.RoundTripper, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
