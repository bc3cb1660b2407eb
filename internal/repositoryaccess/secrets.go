package repositoryaccess

import (
	"cmp"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Secrets are texts that must not leave the process. Errors of libraries hold what they were given, so everything that is logged or
// reported goes through it. It is safe for concurrent use. The zero value has none.
type Secrets struct {
	mu       sync.Mutex
	replacer *strings.Replacer
	forms    []string
}

// hidden is what a secret is replaced by.
const hidden = "[hidden]"

// Hide adds texts.
func (s *Secrets) Hide(texts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range texts {
		s.forms = append(s.forms, escapedForms(text)...)
	}
	// The longest first: one secret may be the beginning of another.
	slices.SortFunc(s.forms, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	s.forms = slices.Compact(s.forms)
	var pairs []string
	for _, form := range s.forms {
		pairs = append(pairs, form, hidden)
	}
	s.replacer = strings.NewReplacer(pairs...)
}

// escapedForms returns a text as it may stand in an error, a log or a URL. An error that has quoted it may be quoted once more.
func escapedForms(text string) []string {
	if text == "" {
		return nil
	}
	forms := []string{text, url.QueryEscape(text), url.PathEscape(text)}
	once := quotedForms(text)
	forms = append(forms, once...)
	for _, form := range once {
		forms = append(forms, quotedForms(form)...)
	}
	return forms
}

// quotedForms returns a text as it stands between quotes.
func quotedForms(text string) []string {
	var forms []string
	for _, quoted := range []string{strconv.Quote(text), strconv.QuoteToASCII(text)} {
		forms = append(forms, quoted[1:len(quoted)-1])
	}
	for _, escape := range []bool{true, false} {
		var out strings.Builder
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(escape) // Some do, some do not.
		if encoder.Encode(text) == nil {
			forms = append(forms, out.String()[1:out.Len()-2])
		}
	}
	return forms
}

// Redact returns a text without secrets.
func (s *Secrets) Redact(text string) string {
	s.mu.Lock()
	replacer := s.replacer
	s.mu.Unlock()
	if replacer == nil {
		return text
	}
	return replacer.Replace(text)
}

// Writer returns a writer that passes on what it gets without secrets. Each call of Write must have whole lines.
func (s *Secrets) Writer(to io.Writer) io.Writer { return redactingWriter{s, to} }

type redactingWriter struct {
	secrets *Secrets
	to      io.Writer
}

// Write implements io.Writer.
func (w redactingWriter) Write(line []byte) (int, error) {
	if _, err := io.WriteString(w.to, w.secrets.Redact(string(line))); err != nil {
		return 0, err
	}
	return len(line), nil
}
