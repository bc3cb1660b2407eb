package guestagent

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"
)

// fake answers guest-exec with a number, and then each question with the next answer.
func fake(t *testing.T, answers ...string) Agent {
	t.Helper()
	return func(_ context.Context, command string) (string, error) {
		if strings.HasPrefix(command, `{"execute":"guest-exec","arguments":{`) {
			return `{"return":{"pid":7}}`, nil
		}
		if command != `{"execute":"guest-exec-status","arguments":{"pid":7}}` {
			t.Errorf("unknown command %s", command)
		}
		if len(answers) == 0 || answers[0] == "" {
			answers = answers[min(1, len(answers)):]
			return "", errors.New("the guest is paused")
		}
		answer := answers[0]
		answers = answers[1:]
		return `{"return":{` + answer + `}}`, nil
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	encoded := base64.StdEncoding.EncodeToString([]byte("text\n"))
	for name, c := range map[string]struct {
		agent  Agent
		output string
		failed string // what the error has
	}{
		"ended":          {fake(t, `"exited":false`, `"exited":true,"exitcode":0,"out-data":"`+encoded+`"`), "text\n", ""},
		"silent between": {fake(t, "", `"exited":true`), "", ""},
		"failed":         {fake(t, `"exited":true,"exitcode":3,"err-data":"`+encoded+`"`), "", "exit code 3, signal 0\ntext"},
		"killed":         {fake(t, `"exited":true,"signal":9`), "", "signal 9"},
		"never answers":  {fake(t), "", "the guest is paused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := c.agent.Run(t.Context(), 100*time.Millisecond, "script")
			if out != c.output || (err != nil) != (c.failed != "") || (err != nil && !strings.Contains(err.Error(), c.failed)) {
				t.Errorf("%q, %v", out, err)
			}
		})
	}
}

func TestCommand_withoutArguments(t *testing.T) {
	t.Parallel()
	if got, err := Command("guest-ping", nil); got != `{"execute":"guest-ping"}` || err != nil {
		t.Error(got, err)
	}
}
