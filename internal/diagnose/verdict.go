package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// What counts as slow: beyond a local flash disk, below which a different disk
// changes little. A flush took 0.34 to 0.38 ms on local NVMe and 2.7 on a
// network volume where both were published (docs/diagnose.md).
const (
	slowFlushMs = 0.8
	slowReadMs  = 0.3
)

// busyCores is the number of sessions on or waiting for a processor, for each
// that there is, from which processors are short.
const busyCores = 0.75

// partWords are the parts as a verdict calls them.
var partWords = map[string]string{
	PageReads: "page reads", CommitFlush: "commit flushes", OtherWAL: "other WAL work", DataWrites: "data writes and checkpoints",
	Replication: "synchronous replication", RowLocks: "row locks", OtherLocks: "lightweight locks", CPU: "the processors", Client: "the client",
	Unexplained: "waits of other kinds",
}

// verdict names one cause.
func (a *assessor) verdict() {
	v := &a.d.Verdict
	v.Storage = CantTell
	switch {
	case len(a.e.Samples) < fewestSamples:
		a.say(CauseUnknown, "Too little was seen for a verdict.", "Sample for longer, with --for.")
		return
	case a.e.Partial && a.hidden():
		a.say(CauseUnknown, "The sessions of other users are hidden from this role, so nothing can be said about where their time goes.", fmt.Sprintf("GRANT pg_monitor TO %s.", a.e.Server.User))
		return
	case a.active.n+a.inTx.n == 0, a.active.mean()+a.inTx.mean() < 0.02 && !a.busy():
		v.Storage = No
		a.say(CauseIdle, fmt.Sprintf("There was nothing to diagnose: %.0f sessions were connected, and hardly ever did one run anything.", a.sessions.mean()),
			"Run it while the server is slow.")
		a.override(CauseIdle)
		return
	}
	a.judge()
	a.override(v.Cause)
	a.d.Verdict.NotCause = a.notCause()
}

func (a *assessor) share(names ...string) (share float64) {
	for _, n := range names {
		if p := a.part(n); p != nil {
			share += p.Share
		}
	}
	return share
}

// of is "11.2 of 14.0 ms (80 %)", or the share alone.
func (a *assessor) of(names ...string) string {
	ms, known := 0.0, false
	for _, n := range names {
		if p := a.part(n); p != nil && p.Ms != nil {
			ms, known = ms+*p.Ms, true
		}
	}
	if !known || a.d.Ms == nil {
		return fmt.Sprintf("%.0f %% of the time", 100*a.share(names...))
	}
	return fmt.Sprintf("%s of the %s ms that a transaction takes (%.0f %%)", figure(ms), figure(*a.d.Ms), 100*a.share(names...))
}

// judge looks for the bottleneck: the largest part of the time in the server,
// and what is behind it.
func (a *assessor) judge() {
	if a.clientBound() {
		return
	}
	groups := [][]string{{PageReads}, {CommitFlush, OtherWAL}, {DataWrites}, {Replication}, {RowLocks}, {OtherLocks}, {CPU}, {Unexplained}}
	best := slices.MaxFunc(groups, func(x, y []string) int { return int(sign(a.share(x...) - a.share(y...))) })
	if a.checkpointStorm(best[0]) {
		return
	}
	// A cap bears on reads and flushes alike.
	if a.d.Storage.Limit == "rate" && (best[0] == PageReads || best[0] == CommitFlush) && a.share(PageReads) >= 0.25 {
		a.capped()
		return
	}
	switch best[0] {
	case PageReads:
		a.slowReads()
	case CommitFlush:
		a.slowFlush()
	case DataWrites:
		a.d.Verdict.Storage = Yes
		a.say(CauseWrites, fmt.Sprintf("Backends write data files themselves: %s.", a.of(DataWrites)),
			"Look for bulk loads and temporary files (work_mem), give shared_buffers more room, and let the background writer do more.")
	case Replication:
		a.d.Verdict.Storage = No
		a.say(CauseReplication, fmt.Sprintf("Commits wait for a synchronous standby: %s, beyond the %s ms for the flush here.", a.of(Replication), a.partMs(CommitFlush)),
			a.standbyAdvice())
	case RowLocks:
		a.locked()
	case OtherLocks:
		a.d.Verdict.Storage = No
		a.say(CauseOtherLocks, fmt.Sprintf("Backends wait for locks on the server's own structures: %s, most in %s.", a.of(OtherLocks), a.topWait(OtherLocks)),
			"Fewer concurrent sessions (a pooler) help most; the event's name says which structure it is.")
	case CPU:
		a.processors()
	default:
		a.say(CauseUnknown, fmt.Sprintf("Sessions wait for something that is no usual bottleneck: %s, most in %s.", a.of(Unexplained), a.topWait(Unexplained)),
			"Look the wait event up in the documentation of pg_stat_activity.")
	}
}

func (a *assessor) partMs(name string) string {
	if p := a.part(name); p != nil && p.Ms != nil {
		return figure(*p.Ms)
	}
	return "unknown"
}

// topWait is the most frequent event of a part.
func (a *assessor) topWait(part string) string {
	for _, w := range a.d.Waits {
		if w.Part == part {
			return w.Event
		}
	}
	return "none"
}

// clientBound says whether the server waits for its clients rather than they for it.
func (a *assessor) clientBound() bool {
	idle := a.working.mean() - a.active.mean() // idle for less than ten seconds
	server := a.active.mean() - a.seen[Client].mean()
	client := idle + a.inTx.mean() + a.seen[Client].mean()
	if client+server <= 0 || client/(client+server) < 0.7 {
		return false
	}
	if a.d.Host != nil && a.seen[CPU].mean() >= busyCores*a.cores() {
		return false // clients on this machine are as short of processors as the server is
	}
	worst := 0.0
	for _, n := range []string{PageReads, CommitFlush, OtherWAL, DataWrites, Replication, RowLocks} {
		worst = max(worst, a.share(n)/max(1-a.share(Client), 0.01))
	}
	if a.d.ServerMs != nil && *a.d.ServerMs >= 20 && worst >= 0.5 {
		return false // few ask, and those wait long
	}
	a.d.Verdict.Storage = No
	text := fmt.Sprintf("The server waits for its clients: of %s sessions that ran something lately, %s were in a statement at any time",
		figure(a.working.mean()+a.inTx.mean()), figure(server))
	if a.busy() && a.d.ServerMs != nil {
		text += fmt.Sprintf("; a transaction takes %s ms in the server and then %s ms of its client's time pass", figure(*a.d.ServerMs), figure(1000*client/a.tps))
	}
	advice := "Look at the program: its own work between statements, the number of its connections, and round trips (batch statements, or move the client closer)."
	if a.inTx.mean() > idle {
		advice = "Look at the program: it thinks with its transaction open. Do that work before BEGIN or after COMMIT."
	}
	a.say(CauseClient, text+".", advice)
	return true
}

// checkpointStorm says whether checkpoints chase each other: they were forced
// by WAL, and each makes the next change of a page log the whole page.
func (a *assessor) checkpointStorm(largest string) bool {
	forced, span := deref(a.d.Rates.CheckpointsForced), a.fullSpan()
	under := 0
	for _, c := range a.check {
		if c {
			under++
		}
	}
	part := float64(under) / float64(len(a.check))
	if span <= 0 || forced < 2 && (forced < 1 || part < 0.6) || span/forced > 90 {
		return false
	}
	images := deref(a.d.Rates.FullPageImagesPerTx)
	slow, _, _ := a.checkpointSlowdown()
	if images < 0.3 && a.share(DataWrites) < 0.25 && slow < 0.3 {
		return false
	}
	if largest == Replication || largest == RowLocks || largest == CPU && slow < 0.3 && images < 1 {
		return false
	}
	text := fmt.Sprintf("Checkpoints chase each other: %.0f were forced by the volume of WAL in %.0f s, and one was under way for %.0f %% of the time", forced, span, 100*part)
	if images > 0 {
		text += fmt.Sprintf("; each makes changed pages go into the WAL whole again (%s full pages a transaction)", figure(images))
	}
	a.d.Verdict.Storage = Yes
	a.say(CauseCheckpoints, text+".", fmt.Sprintf("Raise max_wal_size (now %s) until checkpoints come by checkpoint_timeout, leave checkpoint_completion_target at 0.9, and try wal_compression.",
		size(a.megabytes("max_wal_size", 1024))))
	return true
}

// checkpointSlowdown is by which part transactions were slower while a
// checkpoint was under way; 0 where there is nothing to compare.
func (a *assessor) checkpointSlowdown() (slower, with, without float64) {
	var in, out []float64
	for _, s := range a.seconds() {
		switch {
		case s.checkpoint >= 0.7:
			in = append(in, s.tps)
		case s.checkpoint <= 0.3:
			out = append(out, s.tps)
		}
	}
	if len(in) < 3 || len(out) < 3 {
		return 0, 0, 0
	}
	with, without = median(in), median(out)
	if without <= 0 {
		return 0, with, without
	}
	return 1 - with/without, with, without
}

func (a *assessor) capped() {
	s := &a.d.Storage
	a.d.Verdict.Storage = Yes
	text := fmt.Sprintf("The disk is at its cap of operations: %s, and page reads are %s", s.LimitWhy, a.of(PageReads))
	a.say(CauseIOPS, text+".", "Buy operations or move to a disk without a cap; until then, more memory for caching or fewer pages a transaction (indexes, fillfactor) are what reduces reads.")
}

func (a *assessor) slowReads() {
	s := &a.d.Storage
	fast := s.ReadMs != nil && *s.ReadMs < slowReadMs
	text := fmt.Sprintf("Transactions wait for pages to be read: %s", a.of(PageReads))
	if s.ReadMs != nil && a.d.Rates.ReadsPerTx != nil {
		text += fmt.Sprintf(", at %s pages a transaction and %s ms a page", figure(*a.d.Rates.ReadsPerTx), figure(*s.ReadMs))
	}
	a.d.Verdict.Storage = Yes
	advice := "A disk that reads faster, or more memory: the hit ratio of the buffers says how much is missing."
	if s.Limit == "" && !fast {
		advice += " Whether operations are capped or each is slow cannot be told, since about the same number waited all the time."
	}
	if fast {
		text += "; that is many reads rather than slow ones"
		a.d.Verdict.Storage = No
		advice = "More memory, or statements that touch fewer pages (indexes); a faster disk changes little."
	}
	a.say(CauseReads, text+".", advice)
}

func (a *assessor) slowFlush() {
	s := &a.d.Storage
	p := a.part(CommitFlush)
	slow := s.FlushMs == nil || *s.FlushMs >= slowFlushMs || p.Ms != nil && *p.Ms >= 3*slowFlushMs
	text := fmt.Sprintf("Commits wait for their WAL to be flushed: %s", a.of(CommitFlush, OtherWAL))
	if s.FlushMs != nil {
		text += fmt.Sprintf(", at %s ms a flush", figure(*s.FlushMs))
	}
	if !slow {
		a.d.Verdict.Storage = No
		a.say(CauseNone, text+"; that is what a local flash disk takes, and there is no bottleneck.",
			"Nothing is wrong here. To go further, commit more at a time.")
		return
	}
	a.d.Verdict.Storage = Yes
	a.say(CauseFlush, text+".", "A disk with a quicker flush (a local NVMe disk takes about 0.35 ms), or fewer commits: several statements a transaction, synchronous_commit=off for what may be lost.")
}

func (a *assessor) locked() {
	a.d.Verdict.Storage = No
	text := fmt.Sprintf("Transactions wait for rows that others hold: %s, most in %s", a.of(RowLocks), a.topWait(RowLocks))
	holder := ""
	if a.share(CommitFlush) > 2*a.share(CPU) && a.share(CommitFlush) > 0.1 {
		holder = " Those that hold them mostly wait for the commit's flush, so a quicker flush would shorten the queue too."
	}
	a.say(CauseRowLocks, text+".", "Find the rows that many change (counters, queues, balances), change them last in the transaction, and keep transactions short."+holder)
}

func (a *assessor) standbyAdvice() string {
	var worst Row
	lag := -1.0
	if a.e.End != nil {
		for _, r := range a.e.End.Views["replication"] {
			if state := r.Text("sync_state"); state != "sync" && state != "quorum" {
				continue
			}
			if v, _ := r.Num("flush_lag_s"); v > lag {
				lag, worst = v, r
			}
		}
	}
	advice := "Look at the standby's disk and the round trip to it; a quorum of two candidates (ANY 1) waits for the faster one."
	if lag > 0 {
		advice = fmt.Sprintf("The standby %q confirms after %s ms: look", worst.Text("application_name"), figure(1000*lag)) + strings.TrimPrefix(advice, "Look")
	}
	return advice
}

// processors tells work from a lack of processors.
func (a *assessor) processors() {
	a.d.Verdict.Storage = No
	h := a.d.Host
	on := a.seen[CPU].mean()
	why := ""
	switch {
	case h != nil && deref(h.Throttled) >= 5:
		why = fmt.Sprintf("the control group held its processes back for %.0f %% of the time", *h.Throttled)
	case h != nil && on >= busyCores*a.cores():
		why = fmt.Sprintf("%s sessions on average wanted one of %s processors", figure(on), figure(a.cores()))
	case h != nil && deref(h.StealPercent) >= 10:
		why = fmt.Sprintf("the hypervisor gave %.0f %% of the processors' time to others", *h.StealPercent)
	case h != nil && deref(h.PSICPU) >= 40 && deref(h.BusyPercent) >= 85:
		why = fmt.Sprintf("other programs on the machine keep it %.0f %% busy", *h.BusyPercent)
	case h == nil && on >= 16:
		why = fmt.Sprintf("%s sessions on average wanted a processor, more than most machines have (how many this one has is not to be seen from here)", figure(on))
	}
	if why != "" {
		a.say(CauseCPU, fmt.Sprintf("The processors are the bottleneck: %s is on or waiting for a processor, and %s.", a.of(CPU), why),
			"More processors, fewer concurrent sessions (a pooler), or cheaper statements: pg_stat_statements by total_exec_time says which.")
		return
	}
	a.say(CauseCPUWork, fmt.Sprintf("The time is the statements' own work on a processor: %s, and processors were not short.", a.of(CPU)),
		"Nothing to gain from another disk: look at the statements' plans.")
}

// cores that the server may use.
func (a *assessor) cores() float64 {
	n := float64(a.d.Host.Cores)
	if l := a.d.Host.CPULimit; l != nil && *l < n {
		return *l
	}
	return n
}

// say fills the verdict; the second sentence is about what it is not.
func (a *assessor) say(cause, sentence, advice string) {
	v := &a.d.Verdict
	v.Cause, v.Advice = cause, advice
	v.Sentences = []string{sentence, a.second(cause)}
}

// second says whether storage is to blame, and what else is not.
func (a *assessor) second(cause string) string {
	text := a.blame(cause)
	if a.e.Server.Role == "standby" {
		text = strings.TrimSuffix(text, ".") + ". This is a standby: what commits cost is to be seen on its primary."
	}
	return text
}

func (a *assessor) blame(cause string) string {
	not := a.notCause()
	list := ""
	if len(not) > 0 {
		list = "it is not " + enumerate(not[:min(3, len(not))])
	}
	switch a.d.Verdict.Storage {
	case Yes:
		if list == "" {
			return "Storage is to blame."
		}
		return "Storage is to blame; " + list + "."
	case No:
		if cause == CauseIdle {
			return "Storage is not to blame."
		}
		if list == "" {
			return "Storage is not to blame."
		}
		return "Storage is not to blame; " + list + "."
	}
	return "Whether storage is to blame cannot be told."
}

// notCause are the parts that hardly matter, those that one would suspect first.
func (a *assessor) notCause() []string {
	var out []string
	for _, n := range []string{CommitFlush, PageReads, CPU, RowLocks, DataWrites, Replication, OtherLocks} {
		p := a.part(n)
		if p == nil || p.Share >= 0.15 {
			continue
		}
		if p.Ms != nil {
			out = append(out, fmt.Sprintf("%s (%s ms)", partWords[n], figure(*p.Ms)))
		} else {
			out = append(out, fmt.Sprintf("%s (%.0f %%)", partWords[n], 100*p.Share))
		}
	}
	return out
}

// override puts a hazard first where nothing slows transactions down now, and
// second where something does.
func (a *assessor) override(cause string) {
	if len(a.hazard) == 0 {
		return
	}
	h := a.hazard[0]
	for _, x := range a.hazard[1:] {
		if x.severe && !h.severe || x.severe == h.severe && x.level == Danger && h.level != Danger {
			h = x
		}
	}
	v := &a.d.Verdict
	switch cause {
	case CauseNone, CauseIdle, CauseClient, CauseCPUWork, CauseCPU, CauseOtherLocks:
		if cause == CauseCPU && !h.severe {
			break
		}
		was := v.Sentences[0]
		v.Cause, v.Advice, v.Storage = h.cause, h.advice, No
		v.Sentences = []string{h.text + ".", "Storage is not to blame, and transactions are not slow for it yet: " + lowerFirst(strings.TrimSuffix(was, ".")) + "."}
		return
	}
	v.Sentences[1] = strings.TrimSuffix(v.Sentences[1], ".") + ". Besides: " + lowerFirst(h.text) + "."
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

func enumerate(v []string) string {
	switch len(v) {
	case 0:
		return ""
	case 1:
		return v[0]
	}
	return strings.Join(v[:len(v)-1], ", ") + " or " + v[len(v)-1]
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
