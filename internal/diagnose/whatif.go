package diagnose

import (
	"fmt"
	"math"
	"strings"
)

// Disk is storage that a prediction assumes.
type Disk struct {
	Name    string
	FlushMs float64 // of WAL; 0 leaves flushes as they are
	ReadMs  float64 // of a page; 0 leaves reads as they are
}

// LocalNVMe is what predictions assume when nothing else is asked for: the
// flush of a local NVMe disk (published: 0.34 to 0.38 ms on a cloud server),
// and a page read as such disks are specified.
func LocalNVMe() Disk { return Disk{Name: "a local NVMe disk", FlushMs: 0.34, ReadMs: 0.1} }

// Predict says what a transaction of a diagnosis would take on another disk.
// ok is false where too little is known.
//
// The model, in docs/diagnose.md with its error: reads and flushes get shorter
// by the ratio of one to one; waits for locks shrink with the time for which
// locks are held; processors are a queue of as many servers as the machine has
// cores, solved by mean value analysis for the sessions that are at work, with
// the demand that explains today's processor part; the rest stays.
func Predict(d Diagnosis, disk Disk) (p Prediction, ok bool) {
	part := func(name string) float64 {
		for _, x := range d.Breakdown {
			if x.Name == name && x.Ms != nil {
				return *x.Ms
			}
		}
		return 0
	}
	if d.Ms == nil || *d.Ms <= 0 || len(d.Breakdown) == 0 {
		return p, false
	}
	p = Prediction{Disk: disk.Name, FromMs: *d.Ms, FromFlushMs: d.Storage.FlushMs, FromReadMs: d.Storage.ReadMs}
	flush, read := 1.0, 1.0
	if f := d.Storage.FlushMs; f != nil && disk.FlushMs > 0 && *f > disk.FlushMs {
		flush, p.FlushMs = disk.FlushMs / *f, ptr(disk.FlushMs)
	}
	if r := d.Storage.ReadMs; r != nil && disk.ReadMs > 0 && *r > disk.ReadMs && part(PageReads) > 0 {
		read, p.ReadMs = disk.ReadMs / *r, ptr(disk.ReadMs)
	}
	if p.FlushMs == nil && p.ReadMs == nil {
		return p, false
	}
	io := part(PageReads)*read + (part(CommitFlush)+part(OtherWAL)+part(DataWrites))*flush
	was := part(PageReads) + part(CommitFlush) + part(OtherWAL) + part(DataWrites)
	rest := part(Replication) + part(Client) + part(Unexplained)
	locks := part(RowLocks) + part(OtherLocks)
	cpu, bound := processorPart(d, part(CPU), was+rest+locks, io+rest)
	held := was + part(CPU) + part(Replication)
	if held > 0 {
		locks *= (io + cpu + part(Replication)) / held
	}
	if locks > 0 {
		cpu, bound = processorPart(d, part(CPU), was+rest+part(RowLocks)+part(OtherLocks), io+rest+locks)
	}
	p.Ms = round(io+rest+locks+cpu, 4)
	p.Times = round(p.FromMs/p.Ms, 3)
	if bound {
		p.BoundBy = "cpu"
	}
	if d.Storage.Limit == "rate" && d.Rates.ReadsPerS != nil && p.Ms > 0 {
		p.MoreIOPS = ptr(math.Ceil(*d.Rates.ReadsPerS * (p.Times - 1)))
	}
	p.Sentence = p.sentence()
	return p, true
}

func (p Prediction) sentence() string {
	var with []string
	if p.FlushMs != nil {
		with = append(with, fmt.Sprintf("a flush of %s ms instead of %s", figure(*p.FlushMs), figure(*p.FromFlushMs)))
	}
	if p.ReadMs != nil {
		with = append(with, fmt.Sprintf("page reads of %s ms instead of %s", figure(*p.ReadMs), figure(*p.FromReadMs)))
	}
	text := fmt.Sprintf("With %s (%s), a transaction would take about %s ms instead of %s: %s times as fast",
		strings.Join(with, " and "), p.Disk, figure(p.Ms), figure(p.FromMs), figure(p.Times))
	if p.BoundBy == "cpu" {
		text += ", and the processors would be the next limit"
	}
	if p.MoreIOPS != nil && *p.MoreIOPS > 0 {
		text += fmt.Sprintf("; that takes about %s more read operations a second", count(*p.MoreIOPS))
	}
	return text + "."
}

// processorPart is a transaction's time on and waiting for processors when its
// other parts take delay ms instead of was. bound says that processors would
// be at least 90 % busy.
func processorPart(d Diagnosis, now, was, delay float64) (cpu float64, bound bool) {
	if d.Host == nil || now <= 0 || d.Rates.TPS == nil || d.Ms == nil {
		return now, false
	}
	cores := float64(d.Host.Cores)
	if l := d.Host.CPULimit; l != nil && *l > 0 && *l < cores {
		cores = *l
	}
	// Little's law: the sessions that are in a transaction.
	n := int(math.Round(*d.Rates.TPS * *d.Ms / 1000))
	if n <= 1 || cores <= 0 {
		return now, false
	}
	// The demand that, with today's delays, comes to today's processor part.
	lo, hi := 0.0, now
	for range 50 {
		mid := (lo + hi) / 2
		if residence(n, cores, mid, was) < now {
			lo = mid
		} else {
			hi = mid
		}
	}
	demand := (lo + hi) / 2
	cpu = residence(n, cores, demand, delay)
	return cpu, float64(n)/(cpu+delay)*demand >= 0.9*cores
}

// residence is the time at processors, queueing included, of one of n sessions
// that circulate between them and a delay (ms): exact mean value analysis
// (Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing
// Networks", 1980) with Seidmann's approximation of several servers ("Computerized
// closed queueing network models of flexible manufacturing systems", 1987): one of
// demand/cores in front of a delay of the rest.
func residence(n int, cores, demand, delay float64) float64 {
	each := demand / max(cores, 1)
	fixed := demand - each
	if cores < 1 {
		each, fixed = demand/cores, 0
	}
	queue, r := 0.0, each
	for k := 1; k <= n; k++ {
		r = each * (1 + queue)
		queue = float64(k) / (r + fixed + delay) * r
	}
	return r + fixed
}

func (a *assessor) whatIf() {
	if p, ok := Predict(a.d, LocalNVMe()); ok && p.Times >= 1.05 {
		a.d.WhatIf = append(a.d.WhatIf, p)
	}
}
