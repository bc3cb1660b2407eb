package push

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varvebackup/varve/internal/launcher/freeze"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// A backup is quiesced only if the guest was frozen without interruption until libvirt had begun.
func TestQuiesce_isTrueOnlyWhileTheFreezeHeld(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		arrange func(b *bench)
		want    pb.Backup_Quiesce
	}{
		"held": {func(*bench) {}, pb.Backup_FROZEN},
		"libvirt begins after the watchdog has thawed": {func(b *bench) {
			b.before("BeginBackup", func() { time.Sleep(freeze.Limit + time.Second) })
		}, pb.Backup_THAWED_EARLY},
		"the watchdog thaws, and somebody else freezes again": {func(b *bench) {
			b.before("BeginBackup", func() {
				time.Sleep(freeze.Limit + time.Second)
				b.guest.Set(func() { b.guest.Frozen = true })
			})
		}, pb.Backup_THAWED_EARLY},
		"the guest thaws by itself": {func(b *bench) {
			b.before("BeginBackup", func() { b.guest.Set(func() { b.guest.Frozen = false }) })
		}, pb.Backup_THAWED_EARLY},
		"somebody thaws one file system without the agent": {func(b *bench) {
			b.before("BeginBackup", func() { b.guest.Set(func() { b.guest.ThawedBefore = 1 }) })
		}, pb.Backup_THAWED_EARLY},
		"the agent says nothing any more": {func(b *bench) {
			b.before("BeginBackup", func() { b.guest.Set(func() { b.guest.Fail["Thaw"] = errors.New("no answer") }) })
		}, pb.Backup_THAWED_EARLY},
		"the agent answers the thaw late, as Windows does": {func(b *bench) {
			b.guest.On["Thaw"] = func() { time.Sleep(freeze.ThawPatience + time.Second) }
		}, pb.Backup_FROZEN},
		"the guest admits it late, while the copy goes on": {func(b *bench) {
			b.guest.Fail["Thaw"] = errors.New("couldn't hold writes")
			b.guest.On["Thaw"] = func() {
				time.Sleep(freeze.ThawPatience + time.Second)
				b.guest.Set(func() { b.guest.Frozen = false })
			}
			done := b.guest.On["BeginBackup"]
			b.guest.On["BeginBackup"] = func() { time.AfterFunc(20*time.Second, done) }
		}, pb.Backup_THAWED_EARLY},
		"the agent has not answered the thaw when the backup ends": {func(b *bench) {
			b.guest.On["Thaw"] = func() { time.Sleep(freeze.ThawPatience + freeze.AnswerPatience + time.Minute) }
		}, pb.Backup_THAWED_EARLY},
		"the guest has nothing to freeze": {func(b *bench) { b.guest.FileSystems = 0 }, pb.Backup_FREEZE_FAILED},
		"the guest admits it only when it is thawed": {func(b *bench) {
			b.guest.Fail["Thaw"] = errors.New("couldn't hold writes")
			b.guest.On["Thaw"] = func() {
				time.AfterFunc(250*time.Millisecond, func() { b.guest.Set(func() { delete(b.guest.Fail, "Thaw") }) })
			}
		}, pb.Backup_THAWED_EARLY},
		"somebody else had frozen it, and thaws it": {func(b *bench) {
			b.guest.Frozen = true
			b.before("BeginBackup", func() { b.guest.Set(func() { b.guest.Frozen = false }) })
		}, pb.Backup_THAWED_EARLY},
		"somebody else had frozen it, and its agent says nothing any more": {func(b *bench) {
			b.guest.Frozen = true
			b.before("BeginBackup", func() { b.guest.Set(func() { b.guest.Fail["FSFrozen"] = errors.New("no answer") }) })
		}, pb.Backup_THAWED_EARLY},
		"somebody else had frozen it, and thaws it later": {func(b *bench) { b.guest.Frozen = true }, pb.Backup_FROZEN},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				j := b.job(request())
				b.complete(j)
				test.arrange(b)
				foreign := b.guest.Frozen
				got := b.run(j)
				if got.Phase != pb.Backup_DONE || got.Quiesce != test.want || (got.QuiesceMessage != "") != (foreign || test.want != pb.Backup_FROZEN) {
					t.Errorf("%v, want %v", got, test.want)
				}
				if m := b.readManifest("vm/b2"); m.Quiesced != (test.want == pb.Backup_FROZEN) {
					t.Errorf("the manifest says quiesced %v", m.Quiesced)
				}
			})
		})
	}
}

// before runs happen before the call's other effects.
func (b *bench) before(call string, happen func()) {
	then := b.guest.On[call]
	b.guest.On[call] = func() {
		happen()
		if then != nil {
			then()
		}
	}
}
