package instance_test

import (
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance"
)

// agentEnv makes the test binary an agent that opens and closes, starts and stops
// until it is killed.
const agentEnv = "HOLDFAST_TEST_INSTANCE"

func agentMain(config string) int {
	var cfg instance.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		println(err.Error())
		return 1
	}
	cfg.Log = slog.New(slog.DiscardHandler)
	i, err := instance.New(cfg)
	if err != nil {
		println(err.Error())
		return 1
	}
	done := make(chan cluster.Done, 64)
	tell := func(e cluster.Event) {
		if d, ok := e.(cluster.Done); ok {
			done <- d
		}
	}
	println("ready")
	for id := uint64(1); ; id += 3 {
		i.Begin(cluster.StartPrimary{ID: id}, tell)
		i.Begin(cluster.SetSSN{ID: id + 1, SSN: any1(memberB)}, tell)
		i.Begin(cluster.OpenDoor{}, tell)
		for range 2 {
			<-done
		}
		i.Begin(cluster.StopPostgres{ID: id + 2, Immediate: id%2 == 0}, tell)
		<-done
	}
}

// TestAgentKilled kills the agent at any moment: whatever it left, the next life
// knows it for its own or for nothing, and can go on with it.
func TestAgentKilled(t *testing.T) {
	n := newNodes(t)
	p := n.node("a")
	p.create(t)
	must(t, p.Close())
	cfg := p.cfg
	cfg.Log, cfg.Peer, cfg.Credential = nil, nil, nil
	config, err := json.Marshal(cfg)
	must(t, err)
	for round := range 8 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), agentEnv+"="+string(config))
		errs, err := cmd.StderrPipe()
		must(t, err)
		must(t, cmd.Start())
		buf := make([]byte, 64)
		k, _ := errs.Read(buf)
		if said := strings.TrimSpace(string(buf[:k])); said != "ready" {
			t.Fatalf("the agent said %q", said)
		}
		time.Sleep(time.Duration(rand.N(400)) * time.Millisecond) // any moment will do
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		p.open(t)
		p.mu.Lock()
		p.seen = nil
		p.mu.Unlock()
		p.watch(t)
		v := p.looks(t, "what is left", func(cluster.Postgres) bool { return true })
		if v.Foreign {
			t.Errorf("round %d: a Postgres that the agent had begun is called foreign: %+v", round, v)
		}
		if v.Running {
			p.setSSN(t, any1(memberC))
		}
		if len(pidsOn(p.cfg.DataDir)) == 0 { // or it was being stopped, and has ended by now
			p.startPrimary(t)
		}
		if commits(t, p, 50*time.Millisecond) {
			t.Errorf("round %d: a commit was acknowledged by nobody", round)
		}
		if d := p.stop(t, true); d.Postgres.Running {
			t.Errorf("round %d: it still runs", round)
		}
		must(t, p.Close())
	}
	p.open(t)
}
