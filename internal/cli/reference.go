package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const referenceIntro = `# The command line

<!-- Generated from the command tree by make generate: change the commands, not this file. -->

` + "`varve`" + ` is one static binary. Installed as ` + "`kubectl-varve`" + ` in the PATH it also answers to ` + "`kubectl varve`" + `.
It finds the cluster as kubectl does: ` + "`KUBECONFIG`, `--kubeconfig`, `--context`, `-n`" + `; ` + "`varve help options`" + ` lists the rest.

` + "`varve repo` and `varve disk`" + ` need no cluster. They work on a repository (docs/format.md), which these flags select:

| flag | default | what |
|---|---|---|
| ` + "`--repo-config`" + ` | ` + "`$VARVE_REPO_CONFIG`, or `varve/repository.config`" + ` in the user's configuration directory | the file that ` + "`repo create` and `repo connect`" + ` write |
| ` + "`--password-file`" + ` | ` + "`$VARVE_PASSWORD`" + `, or a prompt on a terminal | a file with the repository's password, which is never an argument |

## Output

Results go to standard output; progress, warnings and errors to standard error.

| ` + "`-o`" + ` | what |
|---|---|
| (none), ` + "`table`" + ` | text for people: binary units, ages; it may change between versions |
| ` + "`wide`" + ` | the same with every column |
| ` + "`json`, `yaml`" + ` | the API object, or the list, as the server has it (docs/api.md), without managedFields; of a repository an object, or ` + "`items`" + `: sizes in bytes, times in RFC 3339 |
| ` + "`name`" + ` | ` + "`kind.group/name`" + `, one per line; of restore points the ID |
| ` + "`jsonpath=TEMPLATE`" + ` | what a template of kubectl's JSONPath makes of what ` + "`json`" + ` shows, such as ` + "`jsonpath='{.items[*].metadata.name}'`" + `; a field that is absent is empty, and no newline follows |
| ` + "`custom-columns=HEADER:PATH,...`" + ` | a table with these columns, as kubectl makes it, such as ` + "`custom-columns=NAME:.metadata.name,PHASE:.status.phase`" + `: a row for each item, ` + "`<none>`" + ` for an absent field |

` + "`vm list`, `backup list` and `tracker list`" + ` with ` + "`--watch`" + ` (` + "`-w`" + `) go on after the list, as kubectl does: they show each object again when it
changes or is deleted, until you interrupt them. For programs they show each object alone, not in a list. A watch outlives a
restart of the API server.

` + "`--wait`" + ` waits for the outcome, at most ` + "`--timeout`" + `. The wait outlives a restart of the API server. ` + "`--progress`" + ` chooses
how to show the progress of a wait, and of everything else that takes a while:

| ` + "`--progress`" + ` | what |
|---|---|
| ` + "`auto`" + ` | ` + "`bar`" + ` when standard error is a terminal, else ` + "`plain`" + ` |
| ` + "`bar`" + ` | a live bar; ` + "`backup pull`" + ` has one for each disk |
| ` + "`plain`" + ` | a line for each step and at the end, and every 10 seconds in between: ` + "`name: phase message 42% 1.2 GiB of 3 GiB, 80 MiB/s, 23s left`" + ` |
| ` + "`json`" + ` | one object per line, for each step and at the end, and every second in between |
| ` + "`none`" + ` | nothing |

The fields of ` + "`json`" + `, which stay as they are; others may be added:

| field | what |
|---|---|
| ` + "`name`, `phase`, `message`" + ` | what it is about, its state in a word, and what is done or waited for; the last two may be absent |
| ` + "`percent`, `processedBytes`, `totalBytes`" + ` | how much is done; while ` + "`totalBytes`" + ` is 0, it is not known. Of a disk's backup, the bytes that are read; of a restore, the data that is written; of ` + "`repo check` and `disk prune`" + `, the size of what was checked |
| ` + "`bytesPerSecond`, `remainingSeconds`" + ` | how fast ` + "`processedBytes`" + ` grows at the moment (a weighted mean over about 20 seconds), and how long the rest takes at that rate; absent while unknown |
| ` + "`scannedBytes`, `diskBytes`" + ` | of a disk's backup: what is settled of the size of the disks, read or known to be a hole or unchanged |
| ` + "`changedBytes`, `deduplicatedBytes`" + ` | of a disk's backup: what is in blocks that are not the parent's, and what the repository had of that |
| ` + "`uploadedBytes`" + ` | of a disk's backup: what went to the storage, compressed |

## Exit codes

| code | meaning |
|---|---|
| 0 | success (without ` + "`--wait`" + `: the request was accepted) |
| 1 | failure, such as a backup that failed, a damaged repository, or a cluster without Varve |
| 2 | wrong usage: nothing was sent |
| 3 | an object, a repository or a restore point does not exist |
| 4 | ` + "`--timeout`" + ` has passed; the operation continues in the cluster |
| 5 | refused by the API server or the repository: not valid, not allowed (a wrong password, a pin), already exists, or was changed or locked by others |
| 6 | no answer from the API server or the storage |
| 7 | ` + "`varve status`" + `: a machine lacks a restore point that it should have |
| 130 | interrupted; an operation in the cluster continues |

## Permissions

Kubernetes' roles ` + "`view`, `edit` and `admin`" + ` include ` + "`varve-view`" + ` (list, describe) and ` + "`varve-edit`" + ` (everything else) where Varve is installed.
` + "`varve-admin`" + ` adds the configuration of the cluster (kind KubeVirt). ` +
	"`varve-image-upload`" + ` is for ` + "`varve image upload`" + `,
` + "`varve-image-download`" + ` for ` + "`varve image download`" + `.
` + "`varve backup create --pull`" + ` also creates a Secret, and ` + "`varve backup pull`" + `
reads it and may forward a port of a pod: ` + "`edit`" + ` and ` + "`admin`" + ` allow that, and ` + "`varve-edit`" + ` alone does not.

## Completion

` + "`varve completion bash|zsh|fish|powershell`" + ` prints a script; it completes commands, flags and the names of objects. For ` + "`kubectl varve`" + `, put
an executable ` + "`kubectl_complete-varve`" + ` in the PATH:

` + "```sh\n#!/bin/sh\nexec kubectl-varve __complete \"$@\"\n```" + `

## Manual pages

` + "`make install-cli`" + ` installs a page for each command: ` + "`man varve`, `man varve-disk-restore`" + `. Packagers write them with
` + "`varve man-pages DIR`" + `.

## Commands
`

// Reference writes the documentation of every command for users, as Markdown.
func Reference(w io.Writer, root *cobra.Command) error {
	var b strings.Builder
	b.WriteString(referenceIntro)
	visitCommands(root, func(c *cobra.Command) {
		if c.HasSubCommands() || !c.Runnable() || hiddenCommand(c) || c.Name() == "help" || (c.HasParent() && c.Parent().Name() == "completion") {
			return
		}
		writeCommand(&b, c)
	})
	_, err := io.WriteString(w, b.String())
	return err
}

func hiddenCommand(c *cobra.Command) bool {
	for ; c != nil; c = c.Parent() {
		if c.Hidden {
			return true
		}
	}
	return false
}

func writeCommand(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n### %s\n\n%s\n\n    %s\n", c.CommandPath(), c.Long, c.UseLine())
	fmt.Fprintf(b, "\n```sh\n%s\n```\n", removeIndent(c.Example))
	rows := ""
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		rows += fmt.Sprintf("| `%s` | %s | %s |\n", flagName(f), flagDefault(f), strings.ReplaceAll(f.Usage, "|", `\|`))
	})
	if rows != "" {
		fmt.Fprintf(b, "\n| flag | default | what |\n|---|---|---|\n%s", rows)
	}
}

func flagName(f *pflag.Flag) string {
	if f.Shorthand == "" {
		return "--" + f.Name
	}
	return "-" + f.Shorthand + ", --" + f.Name
}

func flagDefault(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false":
		return ""
	default:
		return "`" + f.DefValue + "`"
	}
}

// removeIndent removes the indentation that help gives to examples.
func removeIndent(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
