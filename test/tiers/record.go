package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A tier's file has a line for each fact, with tabs between the fields, so that a shell can write it too:
//
//	seconds <of the whole tier>
//	relied  <on what, instead of running>
//	package <result> <import path> <seconds>
//	test    <result> <name> <seconds>            of the package above it
//
// `make test` begins without files. A package that is tested several times, with other flags or tests, is in the file
// several times.

// record is what one run of a package's tests took.
type record struct {
	pkg     string
	result  string // pass, cached, fail, or skip if there are no tests
	seconds float64
	tests   []test
}

// test is a test or a subtest. Its time is its own and that of subtests that run in it, not that of parallel ones.
type test struct {
	name    string
	result  string // pass, fail or skip
	seconds float64
}

// tier is what a tier's file says.
type tier struct {
	name     string
	seconds  int
	relied   []string // what did not run, and why
	packages []record
}

// appendRecords adds records to a tier's file.
func appendRecords(path string, records []record) error {
	var text strings.Builder
	for _, r := range records {
		fmt.Fprintf(&text, "package\t%s\t%s\t%.2f\n", r.result, r.pkg, r.seconds)
		for _, t := range r.tests {
			fmt.Fprintf(&text, "test\t%s\t%s\t%.2f\n", t.result, t.name, t.seconds)
		}
	}
	return appendText(path, text.String())
}

// appendText adds text to a file, and makes no file for nothing.
func appendText(path, text string) error {
	if text == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close() // the write's error tells more
		return err
	}
	return f.Close()
}

// readTier reads the file of a tier. A tier that was never reached has none.
func readTier(dir, name string) (tier, error) {
	t := tier{name: name}
	path := filepath.Join(dir, name+".tsv")
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.relied = []string{"another one failed before"}
		return t, nil
	}
	if err != nil {
		return t, err
	}
	defer func() { _ = f.Close() }() // only read
	lines := bufio.NewScanner(f)
	for number := 1; lines.Scan(); number++ {
		if err := t.add(strings.Split(lines.Text(), "\t")); err != nil {
			return t, fmt.Errorf("%s:%d: %w", path, number, err)
		}
	}
	return t, lines.Err()
}

func (t *tier) add(fields []string) (err error) {
	switch last := len(t.packages) - 1; {
	case fields[0] == "seconds" && len(fields) == 2:
		t.seconds, err = strconv.Atoi(fields[1])
	case fields[0] == "relied" && len(fields) == 2:
		t.relied = append(t.relied, fields[1])
	case fields[0] == "package" && len(fields) == 4:
		r := record{result: fields[1], pkg: fields[2]}
		r.seconds, err = strconv.ParseFloat(fields[3], 64)
		t.packages = append(t.packages, r)
	case fields[0] == "test" && len(fields) == 4 && last >= 0:
		one := test{result: fields[1], name: fields[2]}
		one.seconds, err = strconv.ParseFloat(fields[3], 64)
		t.packages[last].tests = append(t.packages[last].tests, one)
	default:
		err = fmt.Errorf("unknown line %q", strings.Join(fields, "\t"))
	}
	return err
}

// apart returns the tests whose time is in no other's: those on the top, and parallel subtests that took longer than
// what they are a part of.
func (r record) apart() []test {
	seconds := map[string]float64{}
	for _, t := range r.tests {
		seconds[t.name] = t.seconds
	}
	return slices.DeleteFunc(slices.Clone(r.tests), func(t test) bool {
		for slash := strings.LastIndex(t.name, "/"); slash >= 0; slash = strings.LastIndex(t.name[:slash], "/") {
			if parent, ok := seconds[t.name[:slash]]; ok && parent >= t.seconds {
				return true
			}
		}
		return false
	})
}
