package node

import (
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// listenHTTP opens what load balancers and monitoring ask. /primary, /replica and
// /health answer everybody by their status code and one word; /metrics and
// /status need the token where others can reach the address.
func (a *agent) listenHTTP() (func(), error) {
	if a.c.HTTPOff() {
		return func() {}, nil
	}
	token := ""
	if a.c.HTTP.Token != "" {
		b, err := os.ReadFile(a.c.HTTP.Token)
		if err != nil {
			return nil, fmt.Errorf("read the token for HTTP: %w", err)
		}
		if token = strings.TrimSpace(string(b)); len(token) < 16 {
			return nil, fmt.Errorf("the token in %s is too short: 16 characters at least, such as `openssl rand -hex 16` makes", a.c.HTTP.Token)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(a.ctx, "tcp", a.c.HTTP.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for load balancers (http.listen): %w", err)
	}
	s := &http.Server{Handler: a.public(token), ReadHeaderTimeout: firstByteWithin}
	a.work.Go(func() { _ = s.Serve(l) })
	return func() { _ = s.Close() }, nil
}

func (a *agent) public(token string) http.Handler {
	mux := http.NewServeMux()
	say := func(path string, ok func() (bool, string)) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			good, word := ok()
			if !good {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = fmt.Fprintln(w, word)
		})
	}
	say("/primary", func() (bool, string) { return a.isPrimary(), a.word() })
	say("/replica", func() (bool, string) { return a.isReplica(), a.word() })
	say("/health", func() (bool, string) { return a.isHealthy(), a.word() })
	guard := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			if token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
				http.Error(w, "a token is needed: Authorization: Bearer …", http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	mux.Handle("/status", guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reply(w, a.status(r.Context()), nil) })))
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(a))
	mux.Handle("/metrics", guard(promhttp.HandlerFor(reg, promhttp.HandlerOpts{})))
	return mux
}

// alive says whether the core has taken a step lately.
func (a *agent) alive() bool { return time.Since(a.steppedAt) < 10*a.timing.Heartbeat }

func (a *agent) isPrimary() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alive() && a.view.Open && a.pg.Running && a.pg.Primary && a.pg.DoorOpen
}

func (a *agent) isReplica() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alive() && a.pg.Running && !a.pg.Primary && a.pg.Upstream != ""
}

func (a *agent) isHealthy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alive() && a.view.Known && (a.member.Witness || a.pg.Running)
}

// word is the role in one word.
func (a *agent) word() string {
	switch {
	case a.member.Witness:
		return "witness"
	case a.isPrimary():
		return "primary"
	case a.isReplica():
		return "replica"
	}
	return "neither"
}

// collector gives the metrics of one node, as of the moment they are asked for.
type collector struct {
	a       *agent
	metrics []metric
}

type metric struct {
	desc  *prometheus.Desc
	value func(Local) (float64, bool)
}

func newCollector(a *agent) *collector {
	c := &collector{a: a}
	labels := prometheus.Labels{"cluster": a.c.Cluster, "node": a.c.Node}
	add := func(name, help string, value func(Local) (float64, bool)) {
		c.metrics = append(c.metrics, metric{prometheus.NewDesc("holdfast_"+name, help, nil, labels), value})
	}
	flag := func(f func(Local) bool) func(Local) (float64, bool) {
		return func(l Local) (float64, bool) {
			if f(l) {
				return 1, true
			}
			return 0, true
		}
	}
	known := func(f func(Local) float64) func(Local) (float64, bool) {
		return func(l Local) (float64, bool) { return f(l), l.Known }
	}
	add("up", "The agent has read the register.", flag(func(l Local) bool { return l.Known }))
	add("primary_open", "This node is the primary and takes writes.", flag(func(l Local) bool { return l.Open }))
	add("register_leader", "This node's voter leads the register.", flag(func(l Local) bool { return l.Leads }))
	add("epoch", "The term of leadership.", known(func(l Local) float64 { return float64(l.Register.Epoch) }))
	add("timeline", "The named primary's timeline.", known(func(l Local) float64 { return float64(l.Register.Timeline) }))
	add("sync_members", "Members that may confirm a commit; 0: the primary confirms alone.", known(func(l Local) float64 { return float64(len(l.Register.S)) }))
	add("sync_needed", "How many members must confirm a commit.", known(func(l Local) float64 { return float64(l.Register.K) }))
	add("degraded", "Commits are confirmed by the primary alone, and there is no automatic failover.", known(func(l Local) float64 {
		if len(l.Register.S) == 0 {
			return 1
		}
		return 0
	}))
	add("degraded_since_seconds", "Since when the primary confirms alone, in seconds since 1970.", func(l Local) (float64, bool) {
		return l.Register.Degraded.Wall.Seconds(), l.Known && len(l.Register.S) == 0
	})
	add("degraded_lsn_bytes", "From which position on the primary confirms alone.", func(l Local) (float64, bool) {
		return float64(l.Register.Degraded.LSN), l.Known && len(l.Register.S) == 0
	})
	add("postgres_running", "Postgres runs.", flag(func(l Local) bool { return l.Postgres.Running }))
	add("wal_end_bytes", "End of the WAL on this node's disk.", func(l Local) (float64, bool) { return float64(l.Postgres.End), l.Postgres.Exists })
	add("wal_replayed_bytes", "What this standby has replayed.", func(l Local) (float64, bool) {
		return float64(l.Postgres.Replayed), l.Postgres.Exists && !l.Postgres.Primary
	})
	add("slot_wal_bytes", "Most WAL that one slot holds back here.", func(l Local) (float64, bool) {
		var most int64
		for _, s := range l.Postgres.Slots {
			most = max(most, s.Kept)
		}
		return float64(most), l.Postgres.Running
	})
	add("failovers_total", "Changes of epoch that this life of the agent has seen.", func(l Local) (float64, bool) { return float64(len(l.Failovers)), true })
	return c
}

var alarmLabels = []string{"kind"}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	l := c.a.local()
	for _, m := range c.metrics {
		if v, ok := m.value(l); ok {
			ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, v)
		}
	}
	desc := prometheus.NewDesc("holdfast_alarm", "One for each condition that people are told of: 1 while it holds.", alarmLabels,
		prometheus.Labels{"cluster": c.a.c.Cluster, "node": c.a.c.Node})
	for _, k := range cluster.Alarms() {
		v := 0.0
		if _, on := l.Alarms[k.String()]; on {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, k.String())
	}
}
