package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/download"
)

const (
	// downloadPatience is how long a download goes on without a byte, with whatever copies there are.
	downloadPatience = 5 * time.Minute
	// firstPause and longestPause are between two attempts at all copies.
	firstPause   = time.Second
	longestPause = 15 * time.Second
	// answerTime is how long a store may take to begin its answer: a slow disk may.
	answerTime = 2 * time.Minute
	// askTime is how long the API server may take to answer.
	askTime = time.Minute
	// tokenSeconds is how long a token lasts, the shortest time that there is. It is shown once.
	tokenSeconds = 600
)

// storePods are the labels of the pods of the stores.
var storePods = client.MatchingLabels{"app.kubernetes.io/name": "varve", "app.kubernetes.io/component": "store"}

// downloader brings an image to a file or a stream, from whichever ready copy answers.
type downloader struct {
	session  *resource.Session
	client   *cluster.Client
	image    *longhornv1.BackingImage
	transfer *download.Transfer
	path     string
	title    string // of the file
	clock    clock.WithTicker
	// failures counts failed attempts by disk: copies with fewer are tried first.
	failures map[string]int

	mu      sync.Mutex
	problem string // why nothing comes; "" if something does
	from    string // the disk that is read
	begun   int64  // how much an earlier run had left
	forward *cluster.Forwarder
	// cancel ends the attempt that is made, if one is.
	cancel context.CancelCauseFunc
	// moved is how much had come at movedAt, when the last of it did.
	moved   int64
	movedAt time.Time
}

func newDownloader(
	s *resource.Session, c *cluster.Client, b *longhornv1.BackingImage, to download.Destination, path string,
	clock clock.WithTicker,
) (*downloader, error) {
	transfer, err := download.NewTransfer(download.Image{
		Bytes: b.Status.Size, Checksum: b.Status.Checksum, PiecesChecksum: b.Status.PiecesChecksum,
	}, to)
	if err != nil {
		return nil, fmt.Errorf("download image %s: %w", b.Name, err)
	}
	title := "file " + path
	if path == toStdout {
		title = "standard output"
	}
	return &downloader{
		session: s, client: c, image: b, transfer: transfer, path: path, title: title, clock: clock,
		failures: map[string]int{},
	}, nil
}

// errWhole ends everything when the image is there.
var errWhole = errors.New("the image is there")

// downloadImage brings the image. It is a resource.WaitFunc.
func (d *downloader) downloadImage(ctx context.Context, show func(progress.Report)) error {
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := d.readAll(within); err != nil {
			return err
		}
		return errWhole
	})
	group.Go(func() error {
		d.watchTransfer(within, show)
		return nil
	})
	err := group.Wait()
	if errors.Is(err, errWhole) {
		d.showReceived(show)
		return nil
	}
	return d.explainEnd(ctx, err)
}

// explainEnd says what is there, and how to go on.
func (d *downloader) explainEnd(ctx context.Context, err error) error {
	there := fmt.Sprintf("%s of %s of image %s are there", human.Bytes(d.transfer.Done()),
		human.Bytes(d.image.Status.Size), d.image.Name)
	hint := "run the same command again: it goes on there"
	if d.path == toStdout {
		hint = "what was written is not whole"
	}
	d.mu.Lock()
	problem := d.problem
	d.mu.Unlock()
	var explained *failure.Error
	var local *download.LocalError
	switch {
	case errors.As(err, &explained):
		return err
	case errors.As(err, &local):
		return explainLocal(err, d.path)
	case errors.Is(err, failure.ErrTimeout):
		text := "timed out: " + there
		if problem != "" {
			text += "; " + problem
		}
		return &failure.Error{Err: errors.New(text), Code: errclass.ExitTimeout, Hint: hint}
	case errors.Is(err, errclass.Denied), cluster.Classify(err) == cluster.Forbidden:
		return explainDownload(err)
	case errors.Is(err, errclass.Transient):
		return &failure.Error{Err: fmt.Errorf("%s: %w", there, err), Code: errclass.ExitUnreachable, Hint: hint}
	}
	return failure.Interrupted(ctx, err, there, hint)
}

// readAll tries all copies again and again until everything is there.
func (d *downloader) readAll(ctx context.Context) error {
	p := patience{movedAt: d.clock.Now()}
	for {
		before := d.transfer.Done()
		err := d.readAny(ctx)
		switch {
		case err == nil:
			return d.finishTransfer()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isFinal(err):
			return err
		}
		pause, ok := p.choosePause(d.clock.Now(), d.transfer.Done() > before)
		if !ok {
			silent := d.clock.Since(p.movedAt)
			return errclass.Errorf(errclass.Transient, "nothing has come for %s: %w", human.Span(silent), err)
		}
		d.setProblem(err.Error())
		timer := d.clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// patience says how long to wait until the next attempt at all copies.
type patience struct {
	// movedAt is when something had come last.
	movedAt time.Time
	pause   time.Duration
}

// choosePause returns how long to wait after an attempt that has failed, or false if nothing has come for too long.
func (p *patience) choosePause(now time.Time, moved bool) (pause time.Duration, ok bool) {
	p.pause = min(max(2*p.pause, firstPause), longestPause)
	if moved {
		p.movedAt, p.pause = now, firstPause
	}
	return p.pause, now.Sub(p.movedAt) < downloadPatience
}

// isFinal says whether neither another copy nor another attempt helps.
func isFinal(err error) bool {
	var local *download.LocalError
	var explained *failure.Error
	if errors.As(err, &local) || errors.As(err, &explained) || errors.Is(err, errclass.Denied) {
		return true
	}
	switch cluster.Classify(err) {
	case cluster.Forbidden, cluster.Unauthorized, cluster.NotInstalled, cluster.Unconfigured:
		return true
	default:
		return false
	}
}

// finishTransfer compares the whole image with its checksum, and explains what is wrong.
func (d *downloader) finishTransfer() error {
	if err := d.transfer.Finish(); err != nil {
		if errors.Is(err, errclass.Corrupt) {
			hint := "what came was deleted: run the same command again"
			if d.path == toStdout {
				hint = "do not use what was written: run the same command again"
			}
			return &failure.Error{
				Err:  fmt.Errorf("image %s is not what it must be: %w", d.image.Name, err),
				Code: errclass.ExitFailure, Hint: hint,
			}
		}
		return err
	}
	return nil
}

// readAny reads the rest of the image from one copy after the other, until one has sent all of it.
func (d *downloader) readAny(ctx context.Context) error {
	copies, pods, err := d.findCopies(ctx)
	if err != nil {
		return err
	}
	var problems []string
	for i := range copies {
		c := &copies[i]
		err := d.readCopy(ctx, c, pods[c.node])
		if err == nil || ctx.Err() != nil || isFinal(err) {
			return err
		}
		d.failures[c.uuid]++
		problems = append(problems, c.title()+": "+err.Error())
		d.setProblem(problems[len(problems)-1])
	}
	return errclass.Errorf(errclass.Transient, "%s", strings.Join(problems, "; "))
}

// findCopies returns the copies that are ready, and the pods of the stores by their nodes.
func (d *downloader) findCopies(ctx context.Context) (copies []diskCopy, pods map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if copies, err = d.readyCopies(ctx); err == nil {
		pods, err = d.listStores(ctx)
	}
	return copies, pods, err
}

// readyCopies returns the copies that are ready, those first that have failed least.
func (d *downloader) readyCopies(ctx context.Context) ([]diskCopy, error) {
	b, err := getImage(ctx, d.client, d.image.Name)
	if err == nil && (b.UID != d.image.UID || b.Status.UUID != d.image.Status.UUID) ||
		err != nil && cluster.Classify(err) == cluster.NotFound {
		return nil, failure.New("what was downloaded is of the image before", "image %s was deleted", d.image.Name)
	}
	if err != nil {
		return nil, err
	}
	disks, err := listDisks(ctx, d.client)
	if err != nil {
		return nil, err
	}
	var states []string
	var ready []diskCopy
	for _, c := range listCopies(b, disks) {
		if c.state == longhornv1.StateReady {
			ready = append(ready, c)
			continue
		}
		state := c.title() + " is " + c.formatState()
		if c.message != "" {
			state += " (" + human.Line(c.message) + ")"
		}
		states = append(states, state)
	}
	if len(ready) > 0 {
		slices.SortStableFunc(ready, func(a, b diskCopy) int { return d.failures[a.uuid] - d.failures[b.uuid] })
		return ready, nil
	}
	if len(states) == 0 {
		states = []string{"it is on no disk"}
	}
	return nil, failure.New(d.session.CommandHint("image describe "+b.Name)+" shows each disk; once a copy is ready, run "+
		"the same command again", "no copy of image %s is ready: %s", b.Name, strings.Join(states, "; "))
}

// listStores returns the names of the pods of the stores by their nodes.
func (d *downloader) listStores(ctx context.Context) (map[string]string, error) {
	var pods corev1.PodList
	if err := d.client.List(ctx, &pods, client.InNamespace(d.client.Namespace), storePods); err != nil {
		return nil, fmt.Errorf("list the pods of the stores in namespace %s: %w", d.client.Namespace, err)
	}
	names := map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			names[p.Spec.NodeName] = p.Name
		}
	}
	return names, nil
}

// newToken makes a token that is good for downloads alone. The store never sees the user's own credentials.
func (d *downloader) newToken(ctx context.Context) (string, error) {
	account := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.client.Namespace, Name: download.ServiceAccount},
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{download.Audience}, ExpirationSeconds: ptr.To[int64](tokenSeconds),
	}}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := d.client.SubResource("token").Create(ctx, account, request)
	switch {
	case err != nil && cluster.Classify(err) == cluster.NotFound:
		return "", failure.New("install the version of Varve that this command has",
			"the cluster cannot serve images: it has no service account %s/%s", account.Namespace, account.Name)
	case err != nil:
		return "", fmt.Errorf("make a token of the service account %s/%s: %w", account.Namespace, account.Name, err)
	}
	return request.Status.Token, nil
}

// readCopy reads the rest of the image from a copy.
func (d *downloader) readCopy(ctx context.Context, c *diskCopy, pod string) error {
	if pod == "" {
		return errclass.Errorf(errclass.Transient, "no store runs on its node")
	}
	token, err := d.newToken(ctx)
	if err != nil {
		return err
	}
	forward := d.client.Forward(d.client.Namespace, pod, download.Port)
	defer forward.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.beginAttempt(c.title(), forward, cancel)
	defer d.endAttempt()
	transport := &http.Transport{
		DialContext:           dialWith(forward),
		DisableCompression:    true,
		ResponseHeaderTimeout: answerTime,
	}
	defer transport.CloseIdleConnections()
	store := &download.Client{HTTP: &http.Client{Transport: transport}, Token: token}
	of := download.Copy{Image: d.image.Name, UUID: d.image.Status.UUID, DiskUUID: c.uuid}
	if err := d.readHashes(ctx, store, of); err != nil {
		return err
	}
	from, missing, err := d.transfer.Next(ctx)
	if err != nil || !missing {
		return err
	}
	data, err := store.OpenData(ctx, of, from)
	if err != nil {
		return err
	}
	defer func() { _ = data.Close() }() // It was only read.
	d.setProblem("")
	return d.transfer.Receive(ctx, data)
}

// readHashes reads what the pieces must be, if that is not known yet, and finds out what is there already.
func (d *downloader) readHashes(ctx context.Context, store *download.Client, of download.Copy) error {
	if d.transfer.HasHashes() {
		return nil
	}
	hashes, err := store.ReadHashes(ctx, of, d.transfer.CountPieces())
	if err != nil {
		return err
	}
	if err := d.transfer.Begin(ctx, hashes); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = d.transfer.Done()
	return nil
}
