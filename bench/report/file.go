package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
)

// Merge writes rows to a file. A row replaces the one with its ID; the other rows in the file stay.
func Merge(file string, rows []Row) error {
	var all []Row
	if err := readIfExists(file, &all); err != nil {
		return err
	}
	for _, r := range rows {
		if i := slices.IndexFunc(all, func(o Row) bool { return o.ID == r.ID }); i >= 0 {
			all[i] = r
		} else {
			all = append(all, r)
		}
	}
	return Write(file, all)
}

// MergeMachine writes to a file what the figures were measured on: the machine, and the facts of this part of the
// benchmark. The facts of other parts in the file stay.
func MergeMachine(file, part string, facts map[string]any) error {
	all := map[string]any{}
	if err := readIfExists(file, &all); err != nil {
		return err
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	all["cores"], all["cpu"], all["go"] = runtime.NumCPU(), processorModel(string(cpuinfo)), runtime.Version()
	all["kernel"] = strings.TrimSpace(string(kernel))
	all[part] = facts
	return Write(file, all)
}

// processorModel returns the name of the processor.
func processorModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// readIfExists decodes a file if it exists.
func readIfExists(file string, v any) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s is not of this benchmark, remove it: %w", file, err)
	}
	return nil
}

// Write writes a value to a file as JSON.
func Write(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}
