package backingimage

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/handover"
)

func TestFirstCopy_disk(t *testing.T) {
	t.Parallel()
	const making, none = longhornv1.ReasonFirstCopyInProgress, longhornv1.ReasonNoDisk
	tag := func(f *fixture, node, tag string) {
		d := f.nodes[node].Spec.Disks["default-disk"]
		d.Tags = []string{tag}
		f.nodes[node].Spec.Disks["default-disk"] = d
	}
	on := func(node string) outcome {
		return outcome{first: inProgress, disk: node, disks: node, states: node + " pending", reason: making}
	}
	without := outcome{first: pending, reason: none}
	for name, c := range map[string]struct {
		edit  func(*fixture)
		want  outcome
		words string
	}{
		"most free": {func(*fixture) {}, on("a"), "disk default-disk of node a gets the first copy"},
		"most free above what is reserved": {func(f *fixture) {
			f.nodes["a"].Spec.Disks["default-disk"] = longhornv1.DiskSpec{AllowScheduling: true, StorageReserved: 100}
		}, on("b"), ""},
		"one that the user wants": {func(f *fixture) { f.wants("c") }, on("c"), ""},
		"one that a replica waits on": {func(f *fixture) {
			f.hasReplica("b", longhornv1.ReplicaStarting)
		}, on("b"), ""},
		"tags of disks": {func(f *fixture) {
			f.image.Spec.DiskSelector = []string{"fast"}
			tag(f, "c", "fast")
		}, on("c"), ""},
		"tags of nodes": {func(f *fixture) {
			f.image.Spec.NodeSelector = []string{"rack-1"}
			f.nodes["b"].Spec.Tags = []string{"rack-2", "rack-1"}
		}, on("b"), ""},
		"nobody has the tags": {func(f *fixture) {
			f.image.Spec.DiskSelector, f.image.Spec.NodeSelector = []string{"fast"}, []string{"rack-1"}
			tag(f, "c", "fast")
		}, without, `no disk fits: disk default-disk of node a does not have all tags of spec.diskSelector ["fast"], disk ` +
			`default-disk of node b does not have all tags of spec.diskSelector ["fast"], disk default-disk of node c is on a ` +
			`node that does not have all tags of spec.nodeSelector ["rack-1"]`},
		"each for its own reason": {func(f *fixture) {
			f.silent("a")
			f.closeDisk("b", longhornv1.ReasonDiskUnusable, "it is not mounted")
			f.nodes["c"].Spec.AllowScheduling = false
		}, without, "node a has no store that reports (the store of node a reported last at 2026-11-30T08:56:00Z: is varve " +
			"store running there?), disk default-disk of node b is not ready (it is not mounted), disk default-disk of node " +
			"c is on a node with spec.allowScheduling false"},
		"no space, no permission, eviction": {func(f *fixture) {
			f.nodes["a"].Status.DiskStatus["default-disk"].StorageAvailable = 10
			f.nodes["b"].Spec.Disks["default-disk"] = longhornv1.DiskSpec{}
			f.nodes["c"].Spec.Disks["default-disk"] = longhornv1.DiskSpec{AllowScheduling: true, EvictionRequested: true}
		}, without, "node a has 0 bytes free above storageReserved, and the image takes 0, disk default-disk of node b has " +
			"allowScheduling false, disk default-disk of node c is being evicted"},
		"no disks": {func(f *fixture) { f.nodes, f.managers = nil, nil }, without, "no node has a disk"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			c.edit(f)
			p := f.decide()
			c.want.compare(t, p, c.words)
			if !p.finalizer || p.status.UUID != "u" {
				t.Errorf("finalizer %t, UUID %q", p.finalizer, p.status.UUID)
			}
		})
	}
}

func TestFirstCopy_isFollowed(t *testing.T) {
	t.Parallel()
	const making, lost = longhornv1.ReasonFirstCopyInProgress, longhornv1.ReasonFirstCopyUnknown
	a := outcome{first: inProgress, disk: "a", disks: "a", states: "a in-progress", reason: making}
	for name, c := range map[string]struct {
		edit  func(*fixture)
		want  func(*outcome)
		words string
		next  time.Duration
	}{
		"there is no head yet": {
			func(f *fixture) { f.was("a", pending, time.Minute) },
			func(o *outcome) { o.states = "a pending" }, "the store of node a has not begun the copy", 4 * time.Minute,
		},
		"the store waits": {
			func(f *fixture) {
				f.reports("a", pending, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "the disk is busy" })
			},
			func(o *outcome) { o.states = "a pending" },
			"node a: the disk is busy; another disk is chosen at 2026-11-30T09:05:00Z", 0,
		},
		"the store has waited for too long": {
			func(f *fixture) {
				f.was("a", pending, 5*time.Minute)
				f.reports("a", pending, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "too little free space" })
			},
			func(o *outcome) { o.first, o.disks, o.states, o.reason = pending, "", "a pending", lost }, "too little free space", 0,
		},
		"the store cannot make the head": {
			func(f *fixture) {
				f.reports("a", inProgress, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "no space left" })
			},
			func(o *outcome) { o.source = makeSource }, "0 % of the source were read: no space left", 0,
		},
		"there is a head": {
			func(f *fixture) { f.reports("a", inProgress) }, func(o *outcome) { o.source = makeSource }, "0 %", pollSource,
		},
		"the claim is not bound": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.source.claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "source-u"}}
			},
			func(o *outcome) { o.source = makeSource }, "PersistentVolumeClaim source-u is not bound yet", pollSource,
		},
		"the pod does not start": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.hasPod(corev1.PodPending, "")
				f.source.waitsFor = "FailedMount: no such device"
			}, func(o *outcome) { o.source = makeSource }, "FailedMount: no such device", pollSource,
		},
		"the pod has written it": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.hasPod(corev1.PodSucceeded, "")
			}, func(o *outcome) { o.source = removeSource }, "read back and sealed", pollSource,
		},
		"the pod does not start for long": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.hasPod(corev1.PodPending, "")
				f.source.pod.CreationTimestamp = metav1.NewTime(now.Add(-11 * time.Minute))
				f.source.waitsFor = "Insufficient cpu"
			},
			func(o *outcome) {
				o.first, o.disks, o.reason, o.source = failed, "", longhornv1.ReasonFirstCopyFailed, removeSource
			},
			"attempt 1 failed: the source pod has not begun to run on node a: Insufficient cpu", 0,
		},
		"what was written is lost": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.image.Status.FirstCopyWrittenTime = &metav1.Time{Time: now.Add(-2 * time.Minute)}
				f.sealOverdue = true
			},
			func(o *outcome) { o.first, o.disks, o.reason = failed, "", longhornv1.ReasonFirstCopyFailed },
			"what the source has written is not on the disk any more", 0,
		},
		"it was written, and its store was away for long": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.image.Status.FirstCopyWrittenTime = &metav1.Time{Time: now.Add(-time.Hour)}
			}, func(*outcome) {}, "read back and sealed", pollSeal,
		},
		"it was written, and the pod is gone": {
			func(f *fixture) {
				f.reports("a", inProgress, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "input/output error" })
				f.image.Status.FirstCopyWrittenTime = ptr.To(metav1.NewTime(now))
			}, func(*outcome) {}, "read back and sealed: input/output error", 0,
		},
		"the pod failed while nothing reports": {
			func(f *fixture) {
				f.silent("a")
				f.hasPod(corev1.PodFailed, "gone")
				f.was("a", unknown, time.Minute)
			},
			func(o *outcome) { o.first, o.states, o.reason = unknown, "a unknown", lost },
			"reported last at 2026-11-30T08:56:00Z: is varve store running there?; another disk is chosen at " +
				"2026-11-30T09:04:00Z", 4 * time.Minute,
		},
		"the disk is not mounted any more": {
			func(f *fixture) {
				f.was("a", inProgress, time.Hour)
				f.closeDisk("a", longhornv1.ReasonDiskUnusable, "it is not mounted")
			},
			func(o *outcome) { o.first, o.states, o.reason = unknown, "a unknown", lost },
			"disk default-disk of node a cannot be used: it is not mounted; another disk is chosen at 2026-11-30T09:05:00Z", 0,
		},
		"it is known again": {
			func(f *fixture) {
				f.begun("a", unknown)
				f.was("a", unknown, time.Hour)
				f.reports("a", inProgress)
			}, func(o *outcome) { o.source = makeSource }, "", 0,
		},
		"it has been unknown for too long": {
			func(f *fixture) {
				f.begun("a", unknown)
				f.was("a", unknown, 5*time.Minute)
				f.silent("a")
				f.hasPod(corev1.PodRunning, "")
			},
			func(o *outcome) {
				o.first, o.disks, o.states, o.source, o.reason = pending, "", "a unknown", abandonSource, lost
			}, "the first copy is made again", pollSource,
		},
		"the store never began it": {
			func(f *fixture) { f.was("a", pending, 5*time.Minute) },
			func(o *outcome) { o.first, o.disks, o.states, o.reason = pending, "", "a pending", lost }, "", 0,
		},
		"somebody took the disk out of the spec": {
			func(f *fixture) {
				delete(f.image.Spec.DiskFileSpecMap, "disk-a")
				f.reports("a", inProgress)
			}, func(o *outcome) { o.source = makeSource }, "", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.begun("a", inProgress)
			c.edit(f)
			want := a
			c.want(&want)
			p := f.decide()
			want.compare(t, p, c.words)
			if c.next != 0 && p.next != c.next {
				t.Errorf("the next look is in %s, want %s", p.next, c.next)
			}
			if p.source == makeSource && p.sourceNode != "a" {
				t.Errorf("the source is made on node %q", p.sourceNode)
			}
		})
	}
}

// The disk is out of the spec in the pass in which an attempt fails, and another disk is chosen only when nothing is
// left of the attempt and its pause is over.
func TestFirstCopy_fails(t *testing.T) {
	t.Parallel()
	const reasonFailed = longhornv1.ReasonFirstCopyFailed
	again := func(f *fixture, since time.Duration) {
		f.begun("a", failed)
		delete(f.image.Spec.DiskFileSpecMap, "disk-a")
		f.image.Status.FirstCopyMessage, f.image.Status.FirstCopyAttempts = "404", 1
		f.image.Status.FirstCopyRetryTime = ptr.To(metav1.NewTime(now.Add(-since)))
	}
	for name, c := range map[string]struct {
		edit  func(*fixture)
		want  outcome
		words string
	}{
		"the program says why": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.hasPod(corev1.PodFailed, "Invalid: the address gave a web page")
			},
			outcome{first: failed, disk: "a", states: "a in-progress", source: removeSource, reason: reasonFailed},
			"attempt 1 failed: Invalid: the address gave a web page; the next one begins at 2026-11-30T09:01:00Z",
		},
		"the pod was evicted": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.hasPod(corev1.PodFailed, "")
				f.source.pod.Status.Reason, f.source.pod.Status.Message = "Evicted", "The node was low on memory."
				f.image.Status.FirstCopyAttempts = 2
			},
			outcome{first: failed, disk: "a", states: "a in-progress", source: removeSource, reason: reasonFailed},
			"attempt 3 failed: the source pod failed: Evicted: The node was low on memory.; the next one begins at " +
				"2026-11-30T09:04:00Z",
		},
		"the store says why": {func(f *fixture) {
			f.reports("a", failed, func(i *longhornv1.BackingImageV2CopyInfo) { i.Message = "the SHA-256 is another one" })
		}, outcome{first: failed, disk: "a", states: "a failed", reason: reasonFailed}, "node a: the SHA-256 is another one"},
		"its pause is not over": {func(f *fixture) {
			again(f, -time.Minute)
		}, outcome{first: failed, disk: "a", reason: reasonFailed}, "404; the next one begins at 2026-11-30T09:01:00Z"},
		"its source is not gone": {func(f *fixture) {
			again(f, time.Minute)
			f.hasPod(corev1.PodFailed, "404")
		}, outcome{first: failed, disk: "a", source: removeSource, reason: reasonFailed}, ""},
		"its disk is not out of the spec": {func(f *fixture) {
			again(f, time.Minute)
			f.wants("a")
		}, outcome{first: failed, disk: "a", states: "a pending", reason: reasonFailed}, ""},
		"another disk is preferred": {func(f *fixture) {
			again(f, time.Minute)
		}, outcome{
			first: inProgress, disk: "b", disks: "b", states: "b pending", reason: longhornv1.ReasonFirstCopyInProgress,
		}, "attempt 1 failed: 404"},
		"there is no other disk": {func(f *fixture) {
			again(f, time.Minute)
			f.silent("b")
			f.silent("c")
		}, outcome{
			first: inProgress, disk: "a", disks: "a", states: "a pending", reason: longhornv1.ReasonFirstCopyInProgress,
		}, ""},
		"there is no other disk, and the old head": {
			func(f *fixture) {
				again(f, time.Minute)
				f.silent("b")
				f.silent("c")
				f.reports("a", inProgress)
			},
			outcome{first: pending, disk: "a", states: "a in-progress", reason: longhornv1.ReasonNoDisk},
			"still has a copy that is being deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.begun("a", inProgress)
			c.edit(f)
			c.want.compare(t, f.decide(), c.words)
		})
	}
	for attempts, want := range []time.Duration{
		time.Minute, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute,
	} {
		if got := firstCopyPause(int32(attempts)); got != want { //nolint:gosec // a small number
			t.Errorf("the pause after %d attempts is %s, want %s", attempts, got, want)
		}
	}
}

// A first copy that does not match spec.checksum is not made again and again, whatever else fails meanwhile. It is made
// at once when the checksum is corrected.
func TestFirstCopy_hasAnotherChecksum(t *testing.T) {
	t.Parallel()
	type pauses []time.Duration
	const day = 24 * time.Hour
	growing := pauses{
		time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute,
		40 * time.Minute, 80 * time.Minute, 160 * time.Minute, 320 * time.Minute, 640 * time.Minute, 1280 * time.Minute, day, day,
	}
	twice := pauses{time.Minute, day, day}
	for source, want := range map[longhornv1.SourceType]pauses{
		longhornv1.SourceDownload: growing, longhornv1.SourceUpload: growing, longhornv1.SourceRestore: twice,
		longhornv1.SourceClone: twice, longhornv1.SourceExport: twice,
	} {
		t.Run(string(source), func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.image.Spec.SourceType, f.image.Spec.Checksum = source, "wanted"
			var got pauses
			for range want {
				f.begun("a", inProgress)
				f.reports("a", failed, func(i *longhornv1.BackingImageV2CopyInfo) {
					i.Message, i.RefusedChecksum = "the SHA-256 is another one", "wanted"
				})
				p := f.decide()
				got = append(got, p.status.FirstCopyRetryTime.Sub(now))
				f.image.Status.FirstCopyMismatch = p.status.FirstCopyMismatch
				c := meta.FindStatusCondition(p.status.Conditions, longhornv1.ConditionReady)
				if at := p.status.FirstCopyRetryTime.UTC().Format(time.RFC3339); !strings.Contains(c.Message,
					"the next one begins at "+at+", or as soon as spec.checksum is another one") {
					t.Error(c.Message)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An image for which a disk is too small is fetched again after pauses that grow to an hour, whoever says so.
func TestFirstCopy_fullDisk(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*fixture){
		"the store": func(f *fixture) {
			f.reports("a", failed, func(i *longhornv1.BackingImageV2CopyInfo) { i.DiskFull = true })
		},
		"the source": func(f *fixture) {
			f.reports("a", inProgress)
			text := handover.DescribeFailure(errclass.Exhausted, "no space is left")
			f.hasPod(corev1.PodFailed, text)
		},
	} {
		for attempts, pause := range map[int32]time.Duration{
			0: time.Minute, 3: 8 * time.Minute, 6: time.Hour, 1000: time.Hour,
		} {
			f := newFixture()
			f.begun("a", inProgress)
			f.image.Status.FirstCopyAttempts = attempts
			fail(f)
			upload := f.input()
			upload.image = f.image.DeepCopy()
			upload.image.Spec.SourceType = longhornv1.SourceUpload
			if at := decide(upload).status.FirstCopyRetryTime; at == nil || at.Sub(now) != time.Minute {
				t.Errorf("%s, an upload after %d attempts: the next one is at %v", name, attempts, at)
			}
			s := f.decide().status
			if s.FirstCopyRetryTime == nil || s.FirstCopyRetryTime.Sub(now) != pause {
				t.Errorf("%s, after %d attempts: the next one is at %v, want after %s", name, attempts, s.FirstCopyRetryTime, pause)
			}
		}
	}
}

func TestFirstCopy_checksumIsCorrected(t *testing.T) {
	t.Parallel()
	refused := func(f *fixture) {
		f.begun("a", failed)
		delete(f.image.Spec.DiskFileSpecMap, "disk-a")
		f.image.Status.FirstCopyAttempts, f.image.Status.FirstCopyMessage = 2, "the SHA-256 is another one"
		f.image.Status.FirstCopyRetryTime = ptr.To(metav1.NewTime(now.Add(time.Hour)))
		f.image.Status.FirstCopyMismatch = &longhornv1.FirstCopyMismatch{Checksum: "wanted", Count: 2}
	}
	for name, c := range map[string]struct {
		edit  func(*fixture)
		first longhornv1.BackingImageState
		want  *longhornv1.FirstCopyMismatch
		retry time.Duration // 0: none
	}{
		"not yet": {func(f *fixture) {
			refused(f)
			f.image.Spec.Checksum = "wanted"
		}, failed, &longhornv1.FirstCopyMismatch{Checksum: "wanted", Count: 2}, time.Hour},
		"to another one": {func(f *fixture) {
			refused(f)
			f.image.Spec.Checksum = "other"
		}, inProgress, &longhornv1.FirstCopyMismatch{Checksum: "wanted", Count: 2}, 0},
		"to none": {refused, inProgress, &longhornv1.FirstCopyMismatch{Checksum: "wanted", Count: 2}, 0},
		"and is wrong again": {func(f *fixture) {
			refused(f)
			f.begun("a", inProgress)
			f.image.Spec.Checksum = "other"
			f.reports("a", failed, func(i *longhornv1.BackingImageV2CopyInfo) { i.RefusedChecksum = "other" })
		}, failed, &longhornv1.FirstCopyMismatch{Checksum: "other", Count: 1}, time.Minute},
		"and something else fails": {func(f *fixture) {
			refused(f)
			f.begun("a", inProgress)
			f.image.Spec.Checksum = "other"
			f.reports("a", inProgress)
			f.hasPod(corev1.PodFailed, "404")
		}, failed, nil, 4 * time.Minute},
		"not yet, and something else fails": {func(f *fixture) {
			refused(f)
			f.begun("a", inProgress)
			f.image.Spec.Checksum = "wanted"
			f.reports("a", inProgress)
			f.hasPod(corev1.PodFailed, "404")
		}, failed, &longhornv1.FirstCopyMismatch{Checksum: "wanted", Count: 2}, 4 * time.Minute},
		"and is there": {func(f *fixture) {
			refused(f)
			f.begun("a", inProgress)
			f.reports("a", ready)
		}, ready, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			c.edit(f)
			s := f.decide().status
			var retry time.Duration
			if s.FirstCopyRetryTime != nil {
				retry = s.FirstCopyRetryTime.Sub(now)
			}
			if s.V2FirstCopyStatus != c.first || retry != c.retry {
				t.Errorf("%s, tried again in %s: %s", s.V2FirstCopyStatus, retry, s.FirstCopyMessage)
			}
			if diff := cmp.Diff(c.want, s.FirstCopyMismatch); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFirstCopy_getsReady(t *testing.T) {
	t.Parallel()
	f := newFixture()
	f.begun("a", inProgress)
	f.reports("a", ready)
	f.hasPod(corev1.PodRunning, "")
	f.image.Status.FirstCopyMessage = "404"
	f.image.Status.FirstCopyWrittenTime = ptr.To(metav1.NewTime(now))
	p := f.decide()
	outcome{
		first: ready, disk: "a", disks: "a", states: "a ready", source: removeSource, reason: longhornv1.ReasonImageReady,
	}.compare(t, p, "copies are ready on disk default-disk of node a")
	s := p.status
	if s.Checksum != sum || s.Size != 1_000_001 || s.VirtualSize != 1_000_001 || s.RealSize != 100 || s.ReadyCopies != 1 ||
		s.FirstCopyMessage != "" || s.FirstCopyWrittenTime != nil {
		t.Errorf("status %+v", s)
	}
}

// The pod of an upload is one like that of a download, which waits for a command.
func TestFirstCopy_isUploaded(t *testing.T) {
	t.Parallel()
	making := outcome{
		first: inProgress, disk: "a", disks: "a", states: "a in-progress", source: makeSource,
		reason: longhornv1.ReasonFirstCopyInProgress,
	}
	for name, c := range map[string]struct {
		edit  func(*fixture)
		want  outcome
		words string
	}{
		"nobody is there": {func(f *fixture) {
			f.reports("a", inProgress, func(i *longhornv1.BackingImageV2CopyInfo) {
				i.Message, i.Progress = "it waits for `varve image upload ubuntu-22.04 FILE`", 30
			})
			f.hasPod(corev1.PodRunning, "")
		}, making, "30 % of the source were read: it waits for `varve image upload ubuntu-22.04 FILE`"},
		"a command is there": {func(f *fixture) {
			f.reports("a", inProgress, func(i *longhornv1.BackingImageV2CopyInfo) { i.Progress = 30 })
			f.hasPod(corev1.PodRunning, "")
		}, making, "30 % of the source were read"},
		"nobody came": {
			func(f *fixture) {
				f.reports("a", inProgress)
				f.hasPod(corev1.PodFailed, "Expired: nobody has uploaded the image for 1h0m0s: run it")
				f.image.Status.FirstCopyAttempts = 5
			},
			outcome{
				first: failed, disk: "a", states: "a in-progress", source: removeSource, reason: longhornv1.ReasonFirstCopyFailed,
			},
			"attempt 6 failed: Expired: nobody has uploaded the image for 1h0m0s: run it; the next one begins at " +
				"2026-11-30T09:01:00Z",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.image.Spec.SourceType = longhornv1.SourceUpload
			f.begun("a", inProgress)
			c.edit(f)
			c.want.compare(t, f.decide(), c.words)
		})
	}
}

// The image names the file that it was made of: that of the attempt that succeeded.
func TestFirstCopy_saysFromWhichFile(t *testing.T) {
	t.Parallel()
	const file = "0123456789abcdef0123456789abcdef"
	wrote := handover.Result{File: file}.String()
	for name, c := range map[string]struct {
		edit func(*fixture)
		want string
	}{
		"the pod writes": {func(f *fixture) {
			f.reports("a", inProgress)
			f.hasPod(corev1.PodRunning, "")
		}, ""},
		"the pod has written it": {func(f *fixture) {
			f.reports("a", inProgress)
			f.hasPod(corev1.PodSucceeded, wrote)
		}, file},
		"the pod does not say": {func(f *fixture) {
			f.reports("a", inProgress)
			f.hasPod(corev1.PodSucceeded, "")
		}, ""},
		"the pod has failed": {func(f *fixture) {
			f.reports("a", inProgress)
			f.hasPod(corev1.PodFailed, wrote)
		}, ""},
		"the pod is gone": {func(f *fixture) {
			f.reports("a", inProgress)
			f.image.Status.FirstCopyFile, f.image.Status.FirstCopyWrittenTime = file, ptr.To(metav1.NewTime(now))
		}, file},
		"it is sealed when that is first seen": {func(f *fixture) {
			f.reports("a", ready)
			f.hasPod(corev1.PodSucceeded, wrote)
		}, file},
		"it stays": {func(f *fixture) {
			f.isReady("a")
			f.image.Status.FirstCopyFile = file
		}, file},
		"another attempt begins": {func(f *fixture) {
			f.begun("a", failed)
			delete(f.image.Spec.DiskFileSpecMap, "disk-a")
			f.image.Status.FirstCopyFile = file
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture()
			f.image.Spec.SourceType = longhornv1.SourceUpload
			f.begun("a", inProgress)
			c.edit(f)
			if got := f.decide().status.FirstCopyFile; got != c.want {
				t.Errorf("file %q, want %q", got, c.want)
			}
		})
	}
}

func TestNewSourcePod_ofAnUpload(t *testing.T) {
	t.Parallel()
	f := newFixture()
	f.image.Spec.SourceType = longhornv1.SourceUpload
	f.begun("a", inProgress)
	pod := newSourcePod(f.image, &Options{SourceDeadline: time.Hour})
	if got := pod.Spec.Containers[0].Env[0].Value; got != `{"type":"upload","image":"ubuntu-22.04"}` {
		t.Errorf("source %s", got)
	}
	if got := *pod.Spec.ActiveDeadlineSeconds; got != 7*3600 {
		t.Errorf("it may run for %d s", got)
	}
	if pod.Labels[LabelSource] != "upload" {
		t.Errorf("labels %v: the network policy does not know it", pod.Labels)
	}
}

// The pod of an upload calls nobody, and that of a download may call any address: the policies select the right pods.
func TestNewSourcePod_fitsTheNetworkPolicies(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../deploy/store/network.yaml")
	if err != nil {
		t.Fatal(err)
	}
	closed := map[longhornv1.SourceType][]string{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var policy networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict([]byte(document), &policy); err != nil {
			t.Fatal(err)
		}
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range []longhornv1.SourceType{longhornv1.SourceDownload, longhornv1.SourceUpload} {
			f := newFixture()
			f.image.Spec.SourceType = from
			f.begun("a", inProgress)
			pod := newSourcePod(f.image, &Options{})
			if !selector.Matches(labels.Set(pod.Labels)) || len(policy.Spec.Ingress)+len(policy.Spec.Egress) > 0 {
				continue
			}
			for _, direction := range policy.Spec.PolicyTypes {
				closed[from] = append(closed[from], string(direction))
			}
		}
	}
	want := map[longhornv1.SourceType][]string{
		longhornv1.SourceDownload: {"Ingress"}, longhornv1.SourceUpload: {"Ingress", "Egress"},
	}
	if diff := cmp.Diff(want, closed); diff != "" {
		t.Error(diff)
	}
}
