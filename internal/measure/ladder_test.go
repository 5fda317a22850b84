package measure

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var someDay = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// leftovers fails the test when anything but the named files is in dir.
func leftovers(t *testing.T, dir string, keep ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		kept := false
		for _, k := range keep {
			kept = kept || e.Name() == k
		}
		if !kept {
			t.Errorf("%s is left in %s", e.Name(), dir)
		}
	}
}

func TestLadderOnARealDisk(t *testing.T) {
	dir := t.TempDir()
	asked := 0
	rep, err := Disk(t.Context(), dir, someDay, Options{For: 30 * time.Millisecond, Progress: func(done, total int, _ Step) {
		if done != asked || total != 24 {
			t.Errorf("progress %d of %d", done, total)
		}
		asked++
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Steps) != 24 {
		t.Fatalf("%d steps", len(rep.Steps))
	}
	seen := map[string]bool{}
	for i, s := range rep.Steps {
		seen[s.String()] = true
		if s.Step != Steps()[i] {
			t.Errorf("step %d is %s", i, s)
		}
		if s.Skipped != "" {
			if s.Latency != nil || s.Count != 0 {
				t.Errorf("%s is skipped (%s) and has figures", s, s.Skipped)
			}
			continue
		}
		if s.Count == 0 || s.Latency == nil || s.P50Ms <= 0 || s.P99Ms < s.P50Ms || s.MaxMs < s.P99Ms*0.998 || s.MeanMs <= 0 || s.Histogram == "" {
			t.Errorf("%s: count %d, %+v", s, s.Count, s.Latency)
		}
	}
	if len(seen) != 24 {
		t.Errorf("%d different steps", len(seen))
	}
	if rep.Started != "2026-03-01T12:00:00Z" || rep.Schema != 1 || rep.Headline == nil || len(rep.Compare) != 2 {
		t.Errorf("%+v", rep)
	}
	for _, key := range []string{"filesystem", "mount_point", "mount_options", "device", "write_cache", "fua", "rotational", "model", "kernel", "cpu"} {
		if rep.Facts[key] == "" {
			t.Errorf("no fact %s", key)
		}
	}
	leftovers(t, dir)

	// The lab parses this.
	data, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if back.Steps[0].Latency == nil || back.Steps[0].P50Ms != rep.Steps[0].P50Ms || back.Steps[0].Step != rep.Steps[0].Step {
		t.Errorf("JSON there and back: %+v", back.Steps[0])
	}
}

func TestMemoryIsNamed(t *testing.T) {
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("needs a tmpfs at /dev/shm")
	}
	dir, err := os.MkdirTemp("/dev/shm", "hm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	steps, _ := Select("zero-filled,append/fdatasync")
	rep, err := Disk(t.Context(), dir, someDay, Options{For: 20 * time.Millisecond, Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Verdict.Word != Memory || rep.Facts["filesystem"] != "tmpfs" || rep.Facts["write_cache"] != NA {
		t.Errorf("%+v, %v", rep.Verdict, rep.Facts)
	}
	leftovers(t, dir)
}

// A file that is full is followed by a fresh one, or begun again where the
// pattern wants written blocks; one file is left at any time.
func TestFullFiles(t *testing.T) {
	dir := t.TempDir()
	for pattern, files := range map[string]int{Append: 3, Fallocated: 3, ZeroFilled: 1, SameBlock: 1} {
		w := &writer{dir: dir, step: Step{Pattern: pattern, Call: "none"}, buf: alignedBlock()}
		if err := w.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2*segment/Block + 1 {
			if err := w.writeAndFlush(); err != nil {
				t.Fatal(err)
			}
			if _, err := w.advance(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wantOff := int64(Block)
		if pattern == SameBlock {
			wantOff = 0
		}
		if w.files != files || w.off != wantOff {
			t.Errorf("%s: %d files, now at %d", pattern, w.files, w.off)
		}
		leftovers(t, dir, filepath.Base(w.path))
		w.close()
		leftovers(t, dir)
	}
}

func TestWhatTheFileSystemRefusesIsSkipped(t *testing.T) {
	dir := mountWhims(t, &whims{noDirect: true, noFallocate: true})
	rep, err := Disk(t.Context(), dir, someDay, Options{For: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rep.Steps {
		want := ""
		switch {
		case s.Pattern == Fallocated:
			want = "fallocate"
		case s.Direct:
			want = "O_DIRECT"
		}
		if (want == "") != (s.Skipped == "") || !strings.Contains(s.Skipped, want) {
			t.Errorf("%s: skipped %q, want %q", s, s.Skipped, want)
		}
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "p50_ms") != (s.Skipped == "") {
			t.Errorf("%s: %s", s, data)
		}
	}
	if rep.Verdict.Word != Elsewhere || !strings.Contains(rep.Verdict.Text, "FUSE") || rep.Facts["filesystem"] != "fuse.whims" {
		t.Errorf("%+v, %v", rep.Verdict, rep.Facts)
	}
	leftovers(t, dir)
}

// TestCaseSysbenchIssue208: one number for read, write and flush says nothing. A
// flush of known length is measured as such, by every call and pattern, in a
// distribution of its own, and each block is flushed once.
func TestCaseSysbenchIssue208(t *testing.T) {
	w := &whims{}
	dir := mountWhims(t, w)
	for _, only := range []string{"zero-filled/fdatasync/buffered", "append/fsync/buffered", "same-block/o_dsync/buffered", "fallocated/o_dsync/direct"} {
		w.flushNs.Store(0)
		steps, err := Select(only)
		if err != nil {
			t.Fatal(err)
		}
		before := int64(0)
		rep, err := Disk(t.Context(), dir, someDay, Options{For: 300 * time.Millisecond, Steps: steps, Progress: func(int, int, Step) {
			before = w.flushes.Load()
			w.flushNs.Store(int64(5 * time.Millisecond))
		}})
		if err != nil {
			t.Fatal(err)
		}
		s := rep.Steps[0]
		if s.Latency == nil || s.P50Ms < 5 || s.P50Ms > 50 {
			t.Errorf("%s: p50 of a flush of 5 ms: %+v", s, s.Latency)
		}
		if n := w.flushes.Load() - before - 1; n != s.Count { // one for preparing
			t.Errorf("%s: %d flushes reached the disk for %d writes", s, n, s.Count)
		}
	}
}

// TestCaseBurstCredits: what changes its level within a step has no average.
func TestCaseBurstCredits(t *testing.T) {
	w := &whims{}
	dir := mountWhims(t, w)
	w.flushNs.Store(int64(2 * time.Millisecond))
	slow := time.AfterFunc(time.Second, func() { w.flushNs.Store(int64(30 * time.Millisecond)) })
	defer slow.Stop()
	steps, _ := Select("zero-filled/fdatasync/buffered")
	rep, err := Disk(t.Context(), dir, someDay, Options{For: 2 * time.Second, Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	s := rep.Steps[0]
	if s.Latency != nil || rep.Headline != nil || len(rep.Compare) != 0 {
		t.Errorf("a throttled step has one average: %+v", s.Latency)
	}
	if len(s.Regimes) != 2 || s.Regimes[0].P50Ms > 15 || s.Regimes[1].P50Ms < 29 || s.Regimes[0].Count+s.Regimes[1].Count != s.Count || s.NotSteady == "" {
		t.Errorf("regimes %+v, %q", s.Regimes, s.NotSteady)
	}
}

func TestInterruptCleansUp(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	begin := time.Now()
	rep, err := Disk(ctx, dir, someDay, Options{For: time.Hour, Progress: func(int, int, Step) {
		time.AfterFunc(50*time.Millisecond, cancel)
	}})
	if !errors.Is(err, context.Canceled) || rep == nil || time.Since(begin) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	leftovers(t, dir)
}

func TestAFlushThatHangsDoesNotHangTheLadder(t *testing.T) {
	w := &whims{hang: make(chan struct{})}
	dir := mountWhims(t, w)
	t.Cleanup(func() { close(w.hang) }) // before the unmount, which would wait
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for w.flushes.Load() == 0 && t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	begin := time.Now()
	_, err := Disk(ctx, dir, someDay, Options{For: time.Second})
	if !errors.Is(err, ErrStuck) || !strings.Contains(err.Error(), "remove "+dir) || time.Since(begin) > stuckStop+10*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
}

func TestPathsThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(dir, "none"), "/dev/null", "/proc/self"} {
		if _, err := Disk(t.Context(), path, someDay, Options{}); !errors.Is(err, ErrPath) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// smallTmpfs mounts a tmpfs of so many MiB.
func smallTmpfs(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestTooSmallDisk(t *testing.T) {
	dir := smallTmpfs(t, "32m")
	if _, err := Disk(t.Context(), dir, someDay, Options{}); !errors.Is(err, ErrSpace) || !strings.Contains(err.Error(), "32 MiB free") {
		t.Errorf("%v", err)
	}
	leftovers(t, dir)
}

func TestDiskThatFillsUp(t *testing.T) {
	dir := smallTmpfs(t, "70m")
	_, err := Disk(t.Context(), dir, someDay, Options{For: time.Second, Progress: func(int, int, Step) {
		_ = os.WriteFile(filepath.Join(dir, "hog"), make([]byte, 65<<20), 0o600)
	}})
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	leftovers(t, dir, "hog")
}

func TestWhatAKilledRunLeftIsRemovedAndALiveRunsKept(t *testing.T) {
	dir := t.TempDir()
	dead, live, foreign := filepath.Join(dir, scratchPrefix+"dead"), filepath.Join(dir, scratchPrefix+"live"), filepath.Join(dir, "other")
	for _, d := range []string{dead, live, foreign} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "append-1"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(live)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	steps, _ := Select("same-block/fsync/buffered")
	if _, err := Disk(t.Context(), dir, someDay, Options{For: time.Millisecond, Steps: steps}); err != nil {
		t.Fatal(err)
	}
	leftovers(t, dir, filepath.Base(live), "other")
	if _, err := os.Stat(filepath.Join(live, "append-1")); err != nil {
		t.Errorf("a live run's file is gone: %v", err)
	}
}

func TestSelect(t *testing.T) {
	for only, want := range map[string]int{
		"": 24, "append": 6, "append/fsync": 2, "*/o_dsync": 8, "*/*/direct": 12, "zero-filled/fdatasync/buffered": 1,
		"append/fsync,append": 6, "append, same-block/fsync": 8,
	} {
		if got, err := Select(only); err != nil || len(got) != want {
			t.Errorf("%q: %d steps, %v", only, len(got), err)
		}
	}
	for _, bad := range []string{"apend", "append/sync", "append/fsync/maybe", "append/fsync/direct/x", "append,,", "/"} {
		if _, err := Select(bad); err == nil || !strings.Contains(err.Error(), "zero-filled") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestCaseDockerForMacIssue668: flushes that are faster than a disk can be are
// suspicious, since somebody may be ignoring them; and no verdict says safe.
func TestCaseDockerForMacIssue668(t *testing.T) {
	step := func(p50 float64) []StepResult {
		r := StepResult{Step: walStep, Count: 10, Latency: &Latency{P50Ms: p50}}
		r.Suspicious = suspicion(r, map[string]string{"filesystem": "ext4"})
		return []StepResult{r}
	}
	for _, c := range []struct {
		fs   string
		p50  float64
		word string
	}{
		{"ext4", 0.3, Unproven}, {"ext4", 0.008, Suspicious}, {"xfs", 0.019, Suspicious}, {"overlay", 0.3, Unproven}, {NA, 0.3, Unproven},
		{"tmpfs", 0.001, Memory}, {"fuse.x", 0.1, Elsewhere}, {"fuse", 0.001, Elsewhere}, {"nfs4", 1, Elsewhere}, {"9p", 1, Elsewhere},
	} {
		steps := step(c.p50)
		if kind(c.fs) != "disk" {
			steps[0].Suspicious = ""
		}
		v := judge(steps, map[string]string{"filesystem": c.fs, "write_cache": "write back", "fua": "0"})
		if v.Word != c.word || strings.Contains(strings.ToLower(v.Text), "safe") {
			t.Errorf("%s at %.3f ms: %+v", c.fs, c.p50, v)
		}
		if c.word != Memory && !strings.Contains(v.Text, "power cut") {
			t.Errorf("%s: %q does not say what a proof takes", c.fs, v.Text)
		}
	}
	if v := judge(step(0.4), map[string]string{"filesystem": "fuse.holdfast", "device": "local-nvme"}); v.Word != Elsewhere || !strings.Contains(v.Text, "simulated disk local-nvme") {
		t.Errorf("%+v", v)
	}
	if v := judge(nil, map[string]string{"filesystem": "ext4"}); v.Word != Nothing {
		t.Errorf("%+v", v)
	}
}

func TestMountLines(t *testing.T) {
	m, dev, ok := parseMount(`36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`)
	if !ok || dev != "98:0" || m != (mount{"/mnt 2", "ext3", "/dev/root", "rw,noatime,errors=continue"}) {
		t.Errorf("%v %q %+v", ok, dev, m)
	}
	for _, bad := range []string{"", "a - b", "1 2 3 4 5 6 no dash ext4"} {
		if _, _, ok := parseMount(bad); ok {
			t.Errorf("%q is taken for a mount", bad)
		}
	}
}

// The ladder runs as any user: the test runs itself again as one without
// privileges, once where that one may write and once where not.
func TestUnprivileged(t *testing.T) {
	if dir := os.Getenv("MEASURE_AS_USER"); dir != "" {
		rep, err := Disk(t.Context(), dir, someDay, Options{For: 5 * time.Millisecond})
		switch {
		case os.Geteuid() == 0:
			t.Fatal("still root")
		case os.Getenv("MEASURE_REFUSED") != "":
			if !errors.Is(err, ErrPath) || !errors.Is(err, syscall.EACCES) {
				t.Errorf("a directory of root's: %v", err)
			}
		case err != nil:
			t.Error(err)
		case len(rep.Steps) != 24 || rep.Steps[0].Count == 0:
			t.Errorf("%+v", rep)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	const nobody = 65534
	mine, roots := openDir(t), openDir(t)
	if err := os.Chown(mine, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	bin := copyOfTest(t)
	for _, c := range []struct{ dir, refused string }{{mine, ""}, {roots, "1"}} {
		out, err := runAs(t.Context(), bin, nobody, "^TestUnprivileged$", "MEASURE_AS_USER="+c.dir, "MEASURE_REFUSED="+c.refused)
		if err != nil {
			t.Errorf("as nobody in %s: %v\n%s", c.dir, err, out)
		}
		leftovers(t, c.dir)
	}
}
