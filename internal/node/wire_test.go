package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

func messages() []cluster.Message {
	m := cluster.Member{Node: "b", Incarnation: 1<<63 + 5}
	return []cluster.Message{
		cluster.Heartbeat{Epoch: 3, Version: 9, Member: m, Healthy: true, Timeline: 2, End: 1 << 60, Seen: []cluster.Sighting{{Member: m, Timeline: 2, LSN: 7}}},
		cluster.Recruit{Epoch: 4, Primary: m},
		cluster.Report{Epoch: 4, Member: m, History: []cluster.Branch{{Epoch: 1, Timeline: 1}, {Timeline: 7, Fork: 99}}, End: 100, Promised: 3},
		cluster.CatchUp{Epoch: 4, From: "c", Until: 100},
		cluster.Handover{Epoch: 4, Target: "b"},
		cluster.Ask{Command: cluster.Command{ID: 1, Kind: cluster.FailoverAllowDataLoss, Confirm: &cluster.Announcement{Candidate: "b", LSN: 5}}},
		cluster.Hello{Voter: 1<<63 + 1}, cluster.Remember{Voter: 1, Index: 2}, cluster.JoinVoter{Voter: 3},
	}
}

func TestWire(t *testing.T) {
	var b bytes.Buffer
	for _, m := range messages() {
		f, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(f)
	}
	if len(messages()) != len(kinds) {
		t.Fatalf("%d kinds of message travel, %d are tried", len(kinds), len(messages()))
	}
	for _, want := range messages() {
		got, err := decode(&b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %#v (%v), want %#v", got, err, want)
		}
	}
	if _, err := decode(&b); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v", err)
	}
	if _, err := encode(cluster.NamedNotice{}); err == nil {
		t.Fatal("a message that only a mutation sends travels")
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range messages() {
		b, err := encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(binary.BigEndian.AppendUint32(nil, 1<<31))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := encode(m)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back, err := decode(bytes.NewReader(again))
		if err != nil || !reflect.DeepEqual(m, back) {
			t.Fatalf("read %#v, after another round %#v (%v)", m, back, err)
		}
	})
}
