package restorepoint

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/mover"
	"github.com/varvebackup/varve/internal/repository"
)

// Latest is the word for the latest restore point of the repository.
const Latest = "latest"

// idDigits is the form of an ID and of its beginning. minIDDigits is how many of them are enough.
var idDigits = regexp.MustCompile(`^[0-9a-f]+$`)

const minIDDigits = 4

// resolveWords replaces the words that stand for restore points with IDs: `latest`, and the name of a machine, which
// means its latest restore point. What may be the beginning of an ID is a name only if no ID begins with it. Everything
// else stays as it is, for those who look for IDs to refuse.
func resolveWords(ctx context.Context, r *repository.Repository, words ...string) ([]string, error) {
	out := slices.Clone(words)
	var points *mover.Points
	for i, word := range words {
		if len(word) >= minIDDigits && idDigits.MatchString(word) {
			found, err := r.ListMatching(ctx, word)
			if len(found) > 0 || err != nil {
				continue // An error is found again by whoever looks for the ID.
			}
		}
		if points == nil {
			var err error
			if points, err = mover.ListPoints(ctx, r); err != nil {
				return nil, err
			}
		}
		p, err := findLatest(points, word, r.Source("", "", mover.HistoryPath(word)))
		if err != nil {
			return nil, err
		}
		if p != nil {
			out[i] = p.ID
		}
	}
	return out, nil
}

// findLatest returns the restore point that a word stands for, or nil. own is the history of that name which this
// connection's backups belong to; it counts before those of other hosts and users.
func findLatest(points *mover.Points, word string, own repository.Source) (*repository.RestorePoint, error) {
	candidates := points.All
	if word != Latest {
		histories := points.Histories(mover.HistoryFilter{Names: []string{word}})
		if i := slices.IndexFunc(histories, func(h []*repository.RestorePoint) bool { return h[0].Source == own }); i >= 0 {
			histories = histories[i : i+1]
		}
		if len(histories) > 1 {
			return nil, failure.Usage("restore point %s: machines of several hosts or users have this name (%s): give an ID", human.Line(word), historyOwners(histories))
		}
		candidates = slices.Concat(histories...)
	}
	switch {
	case strings.Trim(word, "/") == "":
		return nil, nil //nolint:nilnil // it stands for nothing
	case len(candidates) == 0 && (word == Latest || !idDigits.MatchString(word)) && points.Unreadable == nil:
		return nil, errclass.Errorf(errclass.NotFound, "restore point %s: not found: no ID begins with it, and no machine has this name", human.Line(word))
	case len(candidates) == 0:
		return nil, nil //nolint:nilnil // it stands for nothing
	case points.Unreadable != nil:
		return nil, errclass.Errorf(errclass.Corrupt, "restore point %s: one that cannot be read may be the latest: give an ID: %w", human.Line(word), points.Unreadable)
	}
	candidates = slices.Clone(candidates)
	repository.SortByMaking(candidates)
	return candidates[len(candidates)-1], nil
}

func historyOwners(histories [][]*repository.RestorePoint) string {
	var owners []string
	for _, h := range histories {
		owners = append(owners, human.Line(h[0].Source.User+"@"+h[0].Source.Host))
	}
	return strings.Join(owners, ", ")
}
